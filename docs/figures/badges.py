"""Draw docs/figures/badges.svg, the badges of README.md, from what pyproject.toml and the mutation score say.

python docs/figures/badges.py docs/figures/badges.svg
"""

from __future__ import annotations

import math
import re
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MARGIN, HEIGHT, BETWEEN = 6, 20, 8  # pixels
WIDTHS = {
    " ": 3.9,
    "|": 5,
    ".": 4,
    "-": 5,
    "i": 3,
    "l": 3,
    "f": 3.9,
    "t": 4.3,
    "s": 5.7,
    "%": 11.8,
    "h": 7,
    "n": 7,
    "P": 6.6,
}
NAME_COLOR, VALUE_COLOR = "#555", "#1b7837"


def list_badges() -> list[tuple[str, str]]:
    """Names and values."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    score = (REPOSITORY / "benchmarks/results/mutation.md").read_text(encoding="utf-8")
    killed = re.search(r"^\| \*\*all\*\* .* (\d+%) \|$", score, flags=re.MULTILINE)[1]
    return [
        ("Python", " | ".join(versions)),
        ("license", project["license"]),
        ("types", "strict" if settings["tool"]["mypy"]["strict"] else "checked"),
        ("planted faults that tests notice", killed),
    ]


def draw(badges: list[tuple[str, str]]) -> str:
    """Write the picture."""
    parts, left = [], 0.0
    for badge in badges:
        for text, color in zip(badge, (NAME_COLOR, VALUE_COLOR), strict=True):
            width = math.fsum(WIDTHS.get(letter, 6.8) for letter in text) + 2 * MARGIN
            parts += [
                f'<rect x="{left:.1f}" width="{width:.1f}" height="{HEIGHT}" fill="{color}"/>',
                f'<text x="{left + width / 2:.1f}" y="14" textLength="{width - 2 * MARGIN:.1f}">{text}</text>',
            ]
            left += width
        left += BETWEEN
    width = left - BETWEEN
    title = ", ".join(f"{name}: {value}" for name, value in badges)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{HEIGHT}" '
        f'viewBox="0 0 {width:.0f} {HEIGHT}" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'fill="#fff" text-anchor="middle" role="img">'
    )
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>", ""])


def main(path: str) -> None:
    """Write the file."""
    Path(path).write_text(draw(list_badges()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
