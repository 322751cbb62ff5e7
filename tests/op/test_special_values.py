"""Infinities, NaN, zeros and the largest numbers give ONNX's results; tools/special_values.py draws more."""

from __future__ import annotations

import math

import numpy as np
import pytest
import special_values
from convswap import _native
from convswap.errors import ConvswapError
from repeats import repeats
from special_values import SpecialDraw, check_seed

SEEDS = range(3)
EXAMPLES = 100


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("number", SEEDS)
def test_special_values_follow_onnx_in_every_algorithm(number, device):
    compared, undetermined = check_seed(number, device, examples=repeats(EXAMPLES))
    assert undetermined < 0.1 * compared


def test_every_activation_pool_type_and_algorithm_is_drawn(monkeypatch):
    draws: list[SpecialDraw] = []
    monkeypatch.setattr(special_values, "check", lambda draw, device: draws.append(draw) or (1, 0))
    for number in SEEDS:
        check_seed(number, "cpu", examples=EXAMPLES)
    assert {draw.epilogue["activation"] for draw in draws} == _ACTIVATIONS
    assert {draw.epilogue.get("pool") for draw in draws} == {None, "MaxPool", "AveragePool"}
    assert {draw.type for draw in draws} == {"float32", "float64", "float16", "bfloat16"}
    for entry in _native.catalog():
        # quantised computes codes, which have no special values.
        if entry.device == "cuda" and not entry.by_name_alone and entry.name != "quantised":
            reasons = {
                _native.why_not(draw.problem, entry.name, "cuda", compute_capability=90) for draw in draws
            }
            assert "" in reasons, entry.name


_ACTIVATIONS = {*special_values.PLAIN, *special_values.WITH_PARAMETERS}
LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}


@pytest.mark.parametrize("kind", LARGEST)
def test_bound_of_clip_that_is_left_out_is_the_largest_number_of_the_type(kind):
    shapes = (1, 1, 4, 4), (1, 1, 1, 1)
    problem = _native.Problem(*shapes, False, kind, activation="Clip")
    low, high = problem.text.split("Clip(")[1].rstrip(")").split(",")
    assert [float(low), float(high)] == pytest.approx([-LARGEST[kind], LARGEST[kind]])
    open_above = _native.Problem(
        *shapes, False, kind, activation="Clip", activation_alpha=0.0, activation_beta=math.inf
    )
    assert open_above.text.endswith("Clip(0,inf)")


def test_float64_clip_needs_both_bounds_because_float32_attributes_lack_its_largest_number():
    for bounds in ({}, {"activation_alpha": 0.0}, {"activation_beta": 1.0}):
        with pytest.raises(ConvswapError, match="activation Clip: expected numbers as activation_alpha and"):
            _native.Problem((1, 1, 4, 4), (1, 1, 1, 1), False, "float64", activation="Clip", **bounds)


def test_clip_whose_maximum_is_less_than_its_minimum_gives_the_maximum():
    x = np.array([-2, 0, 2], np.float32).reshape(1, 1, 1, 3)
    w = np.ones((1, 1, 1, 1), np.float32)
    for algorithm in ("direct", "reference"):
        y = _native.conv(
            x, w, algorithm=algorithm, activation="Clip", activation_alpha=0.5, activation_beta=-0.5
        )
        np.testing.assert_array_equal(y.ravel(), [-0.5, -0.5, -0.5])
