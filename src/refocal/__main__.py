"""`python -m refocal`."""

import sys

from refocal.cli import main

sys.exit(main())
