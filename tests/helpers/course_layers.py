"""All distinct convolutions of the course's networks; the suite `course` has those worth timing."""

from __future__ import annotations

from convswap.models import NETWORKS
from convswap.timing.suites import SuiteLayer, convolutions_of, distinct


def course_layers() -> list[SuiteLayer]:
    """Return the convolutions of the eight networks without repetitions."""
    return list(distinct(layer for network in NETWORKS.values() for layer in convolutions_of(network)))
