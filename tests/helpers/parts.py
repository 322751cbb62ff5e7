"""Parts of the tests marked `extended`, of which a run of continuous integration takes one."""

from __future__ import annotations

import zlib

# Environment variable with a part, such as 2/4.
PART = "CONVSWAP_TEST_PART"


def is_in_part(test: str, part: str) -> bool:
    """Return whether a part, such as "2/4" for the second of four, has the test of this name."""
    number, _, count = part.partition("/")
    return zlib.crc32(test.encode()) % int(count) == int(number) - 1
