"""Ceilings of a card: measured ones, limited by the bandwidth that the driver reports."""

from __future__ import annotations

import pytest
from convswap.timing.floor import ceilings

# Bandwidths of the driver and of a copy. H200: 3,201 MHz, twice a clock, 6,144 bits; 4.3 TB/s. H100: 2,619
# MHz, 5,120 bits; 3.0 TB/s.
MEASURED = {
    "NVIDIA H200": (2 * 3.201e9 * 6144 / 8, 4.30e12),
    "NVIDIA H100 80GB HBM3": (2 * 2.619e9 * 5120 / 8, 3.00e12),
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_card_that_was_measured_has_the_bandwidth_of_a_copy(name):
    driver_bandwidth, copy_bandwidth = MEASURED[name]
    for bandwidth in (driver_bandwidth, None):
        known = ceilings({"name": name, "memory_bandwidth": bandwidth})
        assert known is not None
        assert known.bandwidth == copy_bandwidth
        assert known.rates["tf32"] == 989e12


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H2000", "NVIDIA H100 PCIe"],
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
