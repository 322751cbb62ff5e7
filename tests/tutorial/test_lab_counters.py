"""Structures for CUPTI have the sizes of its headers, and remarkable counters give a hint."""

from __future__ import annotations

import pytest
from convswap.tutorial.lab.counters import (
    ACTIVE_THREADS,
    CONFLICTS,
    NAMES,
    SECTORS,
    SHARED_READS,
    counted_hint,
    size_of,
    structure_of,
)

# The ..._STRUCT_SIZE of CUPTI 13.0's headers.
SIZES = {
    "cuptiProfilerInitialize": 16,
    "cuptiDeviceGetChipName": 32,
    "cuptiProfilerHostInitialize": 48,
    "cuptiProfilerHostDeinitialize": 24,
    "cuptiProfilerHostConfigAddMetrics": 40,
    "cuptiProfilerHostGetConfigImageSize": 32,
    "cuptiProfilerHostGetConfigImage": 40,
    "cuptiProfilerHostEvaluateToGpuValues": 72,
    "cuptiRangeProfilerEnable": 32,
    "cuptiRangeProfilerDisable": 24,
    "cuptiRangeProfilerGetCounterDataSize": 64,
    "cuptiRangeProfilerCounterDataImageInitialize": 40,
    "cuptiRangeProfilerSetConfig": 90,
    "cuptiRangeProfilerStart": 24,
    "cuptiRangeProfilerStop": 41,
    "cuptiRangeProfilerDecodeData": 32,
    "cuptiRangeProfilerGetCounterDataInfo": 40,
}


def test_structures_are_as_long_as_the_headers_say() -> None:
    assert {name: size_of(structure_of(name)) for name in SIZES} == SIZES
    config = structure_of("cuptiRangeProfilerSetConfig")
    assert (config.ranges.offset, config.pass_index.offset, config.level.offset) == (64, 80, 88)


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        ({SECTORS: 32.0}, ("uncoalesced", "32.0 sectors", "rung 3")),
        ({SECTORS: 4.0, SHARED_READS: 100.0, CONFLICTS: 300.0}, ("300%", "bank", "rung 9")),
        ({SECTORS: 4.0, ACTIVE_THREADS: 16.0}, ("16.0 take part", "rung 5")),
        (dict.fromkeys(NAMES, 0.0), ()),
        ({}, ()),
    ],
)
def test_what_stands_out_is_the_hint(counters, words) -> None:
    hint = counted_hint(counters)
    assert bool(hint) == bool(words) and all(word in hint for word in words)
