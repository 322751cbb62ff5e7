"""`python -m convswap.cli`, which is `convswap`."""

import sys

from convswap.cli.main import main

sys.exit(main())
