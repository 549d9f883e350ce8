"""Take the picture of the report of `refocal demo`, in headless Chromium: python docs/figures/report.py report.png"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from refocal import cli

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 --window-size=1280,1500"
)


def main(picture: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
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


if __name__ == "__main__":
    main(sys.argv[1])
