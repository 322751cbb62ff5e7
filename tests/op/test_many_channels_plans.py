"""The tilings that `many_channels` chooses among, without a card."""

from __future__ import annotations

import pytest
from convswap import _native
from convswap.errors import ConvswapError

LAYER = _native.Problem((64, 64, 56, 56), (64, 64, 3, 3), pads=[1] * 4)
DEEP_IMAGE = _native.Problem((1, 512, 7, 7), (512, 512, 3, 3), pads=[1] * 4)


def alternatives(problem: _native.Problem, count: int = 8) -> list[float | None]:
    offers = _native.alternatives(problem, "many_channels", count, compute_capability=90)
    return [offer["milliseconds"] for offer in offers]


def test_the_cheapest_comes_first():
    estimates = alternatives(LAYER)
    assert len(estimates) == 8 and estimates == sorted(estimates)
    assert alternatives(LAYER, 2) == estimates[:2]


def test_an_algorithm_without_tilings_has_one_alternative():
    assert len(_native.alternatives(LAYER, "naive", compute_capability=90)) == 1


def test_an_unsupported_problem_is_refused():
    with pytest.raises(ConvswapError, match="many_channels"):
        _native.alternatives(LAYER, "many_channels", compute_capability=75)


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_only_cards_of_9_0_multiply_by_wgmma(capability: int):
    names = _native.kernels_of(LAYER, "cuda", "many_channels", compute_capability=capability)
    kernel = "kernel" if capability == 90 else "mma_kernel"
    assert any(name.startswith(f"many_channels::{kernel}<") for name in names)


def test_work_tiles_that_do_not_fill_the_card_are_split_over_the_channels():
    names = _native.kernels_of(DEEP_IMAGE, "cuda", "many_channels", compute_capability=90)
    assert "many_channels::combine<ScaledFloat16Pairs>" in names
    names = _native.kernels_of(LAYER, "cuda", "many_channels", compute_capability=90)
    assert "many_channels::combine<ScaledFloat16Pairs>" not in names
