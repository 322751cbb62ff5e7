"""Each algorithm can be made to take any of its tilings, which estimates are fitted and judged by."""

from __future__ import annotations

import pytest
from convswap import _native
from convswap.timing.suites import SUITES

ALL = 1 << 30
PRECISIONS = {"tf32": ("float32", "tf32"), "ieee": ("float32", "ieee"), "float16": ("float16", "tf32")}


def problems(precision: str) -> list[_native.Problem]:
    return [
        _native.Problem(
            layer.input_shape(batch), layer.weight_shape, False, *PRECISIONS[precision], **attributes
        )
        for suite in ("course", "first-layers", "depthwise-grouped", "many-channels")
        for layer in SUITES[suite][:3]
        for batch in (1, 64)
        for attributes in [{**layer.attributes, **layer.epilogue}]
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_first_alternative_is_what_the_planner_compares(precision):
    names = set()
    for problem in problems(precision):
        for name, estimate in _native.estimates(problem, "cuda", compute_capability=90).items():
            (first,) = _native.alternatives(problem, name, 1, compute_capability=90)
            assert first["milliseconds"] == estimate
            assert first["kernels"]
            names.add(name)
    assert len(names) > 5


def test_every_tiling_has_a_name_of_its_own_and_families_have_many():
    most = dict.fromkeys(
        ("toeplitz", "few_channels", "implicit_gemm", "many_channels", "tiled", "depthwise", "row_windows"), 0
    )
    for problem in problems("float16"):
        for name in most:
            if _native.why_not(problem, name, "cuda", compute_capability=90):
                continue
            offers = _native.alternatives(problem, name, ALL, compute_capability=90)
            keys = [offer["tiling"] for offer in offers]
            assert len(set(keys)) == len(keys) and all(keys)
            most[name] = max(most[name], len(keys))
    assert min(most.values()) >= 6, most
