"""`python -m convswap`, the same as `convswap`."""

import sys

from convswap.cli import main

sys.exit(main())
