"""`python -m refocal`."""

import sys

from refocal_command import main

sys.exit(main())
