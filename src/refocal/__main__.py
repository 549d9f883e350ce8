"""The command `refocal`, also as `python -m refocal`."""

import sys

from refocal._program import start


def main() -> int:
    """Run the command line, and return the exit status."""
    return start("refocal", "refocal.cli")


if __name__ == "__main__":
    sys.exit(main())
