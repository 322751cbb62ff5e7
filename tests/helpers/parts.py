"""Parts of the tests marked `extended`, of which a run of continuous integration takes one."""

from __future__ import annotations

import re
import zlib

# Environment variable with a part: 2/4 is the second of four.
PART = "CONVSWAP_TEST_PART"


def part_of(text: str) -> tuple[int, int] | None:
    """Return number and count of a part such as "2/4"; None if there is no such part."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        return None
    number, count = int(match[1]), int(match[2])
    return (number, count) if 1 <= number <= count else None


def is_in_part(test: str, number: int, count: int) -> bool:
    """Return whether part `number` of `count` has the test of this name."""
    return zlib.crc32(test.encode()) % count == number - 1
