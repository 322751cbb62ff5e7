"""The entry point of `python -m convswap.cli`, which is the same as `convswap`."""

import sys

from convswap.cli.main import main

sys.exit(main())
