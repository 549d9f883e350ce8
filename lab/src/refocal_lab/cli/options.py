"""Options that several commands of the lab share."""

from __future__ import annotations

from typing import Any


def add_data_folder(command: Any) -> None:
    """Add --data-folder."""
    command.add_argument(
        "--data-folder", metavar="FOLDER", help="folder of the data files (default: $REFOCAL_DATA, or ~/.cache/refocal)"
    )


def add_device(command: Any) -> None:
    """Add --device."""
    command.add_argument("--device", help="cpu or cuda (default: cuda if there is a GPU)")


def add_zoo(command: Any) -> None:
    """Add --zoo."""
    command.add_argument(
        "--zoo", metavar="FOLDER", help="folder of cards and logits of trained networks (default: that of the clone)"
    )
