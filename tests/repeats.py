"""How much of the same a test computes: less under the tool that slows it down most.

`tools/sanitize_cuda.py` sets CONVSWAP_TEST_SHARE for racecheck, which looks at what the threads of one block
do to its shared memory: more blocks or runs of the same kernels tell it nothing more.
"""

from __future__ import annotations

import math
import os


def repeats(count: int, least: int = 1) -> int:
    """Return `count`, or as much of it as CONVSWAP_TEST_SHARE says, from `least` on."""
    return max(min(count, least), math.ceil(count * float(os.environ.get("CONVSWAP_TEST_SHARE", "1"))))
