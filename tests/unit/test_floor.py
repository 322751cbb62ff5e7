"""Which ceilings a card has: those that were measured on it, and never more than its driver tells."""

from __future__ import annotations

import pytest
from convswap.runtime.floor import ceilings

# 3,201 MHz, twice a clock, 6,144 bits: what an H200 tells, more than the 4.3 TB/s that a copy reaches.
TOLD_BY_AN_H200 = 2 * 3.201e9 * 6144 / 8


def test_a_card_that_was_measured_has_the_bandwidth_of_a_copy():
    for told in (TOLD_BY_AN_H200, None):
        known = ceilings({"name": "NVIDIA H200", "memory_bandwidth": told})
        assert known is not None
        assert known.bandwidth == 4.30e12
        assert known.rates["tf32"] == 989e12


@pytest.mark.parametrize(
    "name", ["NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H2000"]
)
def test_a_card_whose_name_only_holds_that_of_a_measured_one_was_not_measured(name):
    known = ceilings({"name": name, "memory_bandwidth": 4.0e12})
    assert known is not None
    assert (known.bandwidth, known.rates) == (4.0e12, {})
    assert ceilings({"name": name, "memory_bandwidth": None}) is None


def test_a_measured_card_moves_no_more_than_its_driver_tells():
    known = ceilings({"name": "NVIDIA H200", "memory_bandwidth": 0.6e12})
    assert known is not None
    assert known.bandwidth == 0.6e12
    assert known.rates["ieee"] == 989e12 / 3
