"""The command `refocal-lab`, also as `python -m refocal_lab`."""

import sys

from refocal._program import start


def main() -> int:
    """Run the command line, and return the exit status."""
    return start("refocal-lab", "refocal_lab.cli")


if __name__ == "__main__":
    sys.exit(main())
