"""Take the picture of the report of `refocal demo`, in headless Chromium: python docs/figures/report.py report.png

The picture also holds, as text, what the demo printed: a test compares it with the page that shows the picture.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from refocal import cli

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 --window-size=1280,1500"
)


def main(picture: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        os.environ["COLUMNS"] = "80"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if cli.main(["demo", "--report", str(page)]) != 0:
                sys.exit("the demo failed")
        command = [
            "chromium",
            *FLAGS.split(),
            f"--user-data-dir={folder}/profile",
            f"--screenshot={picture}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True)
    *lines, _ = printed.getvalue().splitlines()  # the last one names the page
    note = PngInfo()
    note.add_itxt("printed", "\n".join(lines))
    with Image.open(picture) as taken:
        taken.save(picture, optimize=True, pnginfo=note)


if __name__ == "__main__":
    main(sys.argv[1])
