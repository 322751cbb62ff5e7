"""`channels_last`: the planner takes it for NHWC tensors, it says why it cannot, and it is the definition."""

from __future__ import annotations

import numpy as np
import pytest
from convswap import _native
from convswap.reference.operators import reference_conv

NHWC = {"input_layout": "NHWC", "output_layout": "NHWC"}
HOPPER = {"compute_capability": 90}


def problem_of(x_shape, w_shape, kind="float16", **attributes) -> _native.Problem:
    """A problem of an element type, or of float32 in precision ieee."""
    type_ = {"type": "float32", "precision": "ieee"} if kind == "ieee" else {"type": kind}
    return _native.Problem(x_shape, w_shape, **{**type_, **NHWC, **attributes})


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "ieee"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((64, 56, 56, 64), (64, 64, 3, 3), {"pads": [1] * 4}),
        ((64, 28, 28, 128), (128, 128, 3, 3), {"pads": [1] * 4}),
        ((64, 14, 14, 256), (256, 256, 3, 3), {"pads": [1] * 4}),
        ((64, 7, 7, 512), (512, 512, 3, 3), {"pads": [1] * 4}),
        ((64, 56, 56, 128), (128, 128, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
        ((1, 512, 512, 128), (128, 128, 3, 3), {"pads": [1] * 4}),
        ((8, 4096, 256), (256, 256, 7), {"pads": [9, 9], "dilations": [3]}),
        ((4, 32, 32, 32, 32), (32, 32, 3, 3, 3), {"pads": [1] * 6}),
    ],
)
def test_the_planner_takes_it_for_nhwc_tensors(x_shape, w_shape, attributes, kind):
    problem = problem_of(x_shape, w_shape, kind, **attributes)
    assert _native.choose(problem, "cuda", **HOPPER) == "channels_last"
    kernels = _native.kernels_of(problem, "cuda", "channels_last", **HOPPER)
    assert not any("layout::" in kernel for kernel in kernels)


@pytest.mark.parametrize(
    ("problem", "capability", "reason"),
    [
        (
            _native.Problem((1, 64, 8, 8), (64, 64, 3, 3), type="float16"),
            90,
            "it takes x, y and the residual in NHWC",
        ),
        (
            problem_of((1, 8, 8, 64), (64, 64, 3, 3), "float64"),
            90,
            "it takes float32, float16, bfloat16 and codes",
        ),
        (problem_of((1, 8, 8, 64), (64, 64, 3, 3)), 80, "it needs compute capability 9.0"),
        (problem_of((1, 8, 8, 12), (64, 12, 3, 3)), 90, "it takes channels and filters in multiples of 8"),
        (
            problem_of((1, 8, 8, 6), (64, 6, 3, 3), "float32"),
            90,
            "it takes channels and filters in multiples of 4",
        ),
        (
            problem_of((1, 8, 8, 64), (64, 32, 3, 3), group=2),
            90,
            "it takes channels and filters of a group in multiples of 64",
        ),
        (
            problem_of((1, 8, 8, 32), (64, 16, 3, 3), "float32", group=2),
            90,
            "it takes channels and filters of a group in multiples of 32",
        ),
        (problem_of((1, 99, 99, 64), (64, 64, 1, 1), strides=[9, 9]), 90, "it takes strides of at most 8"),
        (problem_of((1, 40, 40, 64), (64, 64, 12, 11)), 90, "it takes at most 128 taps of height and width"),
        (
            problem_of((1, 40, 40, 64), (64, 64, 5, 5), strides=[5, 5]),
            90,
            "its taps read 25 stride phases, more than 16",
        ),
        (
            problem_of((1, 8, 8, 8, 64), (64, 64, 1, 1, 1), strides=[2**20, 1, 1], pads=[2**30, *[0] * 5]),
            90,
            "its indices have 32 bits",
        ),
    ],
)
def test_it_says_why_it_cannot(problem, capability, reason):
    assert _native.why_not(problem, "channels_last", "cuda", compute_capability=capability).startswith(reason)
    assert _native.choose(problem, "cuda", compute_capability=capability) != "channels_last"


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "reason"),
    [
        ((0, 8, 8, 64), (64, 64, 3, 3), "the output is empty"),
        ((1, 0, 8, 64), (64, 64, 1, 3), "the input is empty"),
        ((1, 8, 8, 64), (0, 64, 3, 3), "the output is empty"),
        ((1, 8, 8, 0), (64, 0, 3, 3), "the input has no channels"),
    ],
)
def test_empty_tensors_are_refused(x_shape, w_shape, reason):
    problem = problem_of(x_shape, w_shape, pads=[1] * 4)
    assert _native.why_not(problem, "channels_last", "cuda", **HOPPER) == reason


def test_precision_ieee_is_computed_in_nhwc_where_tensors_are_nchw():
    shapes = (64, 256, 14, 14), (256, 256, 3, 3)
    for precision, is_taken in (("ieee", True), ("tf32", False)):
        problem = _native.Problem(*shapes, type="float32", precision=precision, pads=[1] * 4)
        assert (_native.choose(problem, "cuda", **HOPPER) == "channels_last") is is_taken
        kernels = _native.kernels_of(problem, "cuda", "channels_last", **HOPPER) if is_taken else []
        assert any("layout::" in kernel for kernel in kernels) is is_taken


def test_planning_tries_few_tilings():
    problem = problem_of((1, 512, 512, 128), (128, 128, 3, 3), pads=[1] * 4)
    assert 10 < len(_native.alternatives(problem, "channels_last", 1000, **HOPPER)) < 150


@pytest.mark.parametrize("kind", ["float16", "float32", "ieee"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((1, 512, 3, 32), (64, 32, 3, 3), {"pads": [1] * 4}),
        ((64, 2000, 8, 64), (64, 64, 3, 3), {"pads": [1] * 4}),
        ((1, 2000, 2, 64), (64, 64, 1, 1), {}),
        ((8, 112, 112, 64), (64, 64, 11, 11), {"pads": [3] * 4}),
    ],
)
def test_tall_images_and_tall_filters_have_tilings(x_shape, w_shape, attributes, kind):
    """The tallest tiles that are tried have no more positions than an instance of the precision."""
    problem = problem_of(x_shape, w_shape, kind, **attributes)
    assert len(_native.alternatives(problem, "channels_last", 1000, **HOPPER)) >= 10


@pytest.mark.parametrize("kind", ["float16", "float32", "ieee"])
@pytest.mark.parametrize("channels", [512, 2048])
def test_blocks_split_k_where_one_image_leaves_the_card_idle(channels, kind):
    taps, pads = (3, [1] * 4) if channels == 512 else (1, [0] * 4)
    for images in (1, 64):
        shapes = (images, 7, 7, channels), (512, channels, taps, taps)
        problem = problem_of(*shapes, kind, pads=pads)
        (tiling, *_) = _native.alternatives(problem, "channels_last", 1, **HOPPER)
        assert ("splits" in tiling["tiling"]) is (images == 1), tiling


def test_blocks_that_need_a_multiprocessor_leave_some_out_of_clusters():
    """128 blocks in clusters of eight do not run at once on 132 multiprocessors."""
    for kind, has_all in (("ieee", False), ("float32", True)):
        problem = problem_of((1, 14, 14, 256), (256, 256, 3, 3), kind, pads=[1] * 4)
        tilings = [each["tiling"] for each in _native.alternatives(problem, "channels_last", 1000, **HOPPER)]
        assert any("rows 7 columns 7 splits 4" in tiling for tiling in tilings)
        assert any("rows 7 columns 7 splits 8" in tiling for tiling in tilings) is has_all


@pytest.mark.parametrize("element_type", ["float16", "uint8"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes", "is_paired"),
    [
        ((64, 56, 56, 32), (144, 32, 1, 1), {}, True),
        ((64, 28, 28, 128), (512, 128, 1, 1), {}, True),
        ((64, 56, 56, 64), (64, 64, 3, 3), {"pads": [1] * 4}, False),  # a long main loop
        ((1, 56, 56, 32), (144, 32, 1, 1), {}, False),  # fewer tiles than multiprocessors
    ],
)
def test_two_blocks_share_a_multiprocessor_where_main_loops_are_short(
    x_shape, w_shape, attributes, is_paired, element_type
):
    activation = "SiLU" if element_type == "float16" else "Relu"
    problem = problem_of(x_shape, w_shape, element_type, activation=activation, **attributes)
    tilings = [each["tiling"] for each in _native.alternatives(problem, "channels_last", 1000, **HOPPER)]
    assert ("blocks 2" in tilings[0]) is is_paired
    assert is_paired or not any("blocks" in tiling for tiling in tilings)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((2, 6000, 64), (64, 64, 3), {"strides": [2]}),
        ((1, 6, 3000, 64), (64, 64, 3, 9), {"dilations": [1, 25]}),
        ((1, 12_000, 1, 64), (64, 64, 3, 1), {"strides": [8, 1]}),
    ],
)
def test_long_rows_and_columns_are_cut_into_tiles_that_a_box_holds(x_shape, w_shape, attributes):
    problem = problem_of(x_shape, w_shape, **attributes)
    assert not _native.why_not(problem, "channels_last", "cuda", **HOPPER)


CASES = {
    "whole rows": ((3, 20, 28, 72), (64, 72, 3, 3), {"pads": [1] * 4}),
    "strips": ((2, 9, 300, 64), (40, 64, 3, 3), {"pads": [1] * 4}),
    "several images in a tile": ((9, 7, 7, 136), (200, 136, 3, 3), {"pads": [1] * 4}),
    "strides": ((2, 31, 33, 64), (128, 64, 3, 3), {"pads": [1, 0, 1, 2], "strides": [2, 2]}),
    "long rows, strides": ((1, 9, 1201, 64), (40, 64, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "dilations": ((2, 31, 33, 24), (88, 24, 3, 5), {"pads": [2, 4, 2, 4], "dilations": [2, 2]}),
    "one tap": ((4, 30, 30, 256), (64, 256, 1, 1), {}),
    "one tap, stride": ((4, 30, 30, 256), (320, 256, 1, 1), {"strides": [2, 2]}),
    "groups": ((2, 12, 12, 128), (256, 64, 3, 3), {"pads": [1] * 4, "group": 2}),
    "1-D": ((2, 500, 64), (64, 64, 7), {"pads": [3, 3]}),
    "3-D": ((1, 6, 9, 9, 32), (48, 32, 3, 3, 3), {"pads": [1] * 6, "strides": [2, 1, 1]}),
    "a small grid": ((1, 7, 8, 584), (136, 584, 3, 3), {"pads": [1] * 4}),
    "a small grid of images": ((5, 5, 4, 520), (72, 520, 1, 1), {}),
    "short main loops": ((18, 32, 32, 40), (200, 40, 1, 1), {}),
    "short main loops, 128 filters": ((18, 32, 32, 32), (128, 32, 1, 1), {}),
}


CASES_OF_FLOAT32 = {
    **CASES,
    "multiples of 4": ((2, 15, 15, 44), (92, 44, 3, 3), {"pads": [1] * 4}),
    "groups of 32": ((2, 12, 12, 96), (288, 32, 3, 3), {"pads": [1] * 4, "group": 3}),
}
# Numbers in two parts take twice the memory: four stride phases, residual and results do not fit for the
# narrowest tiles that are tried.
CASES_OF_IEEE = [case for case in CASES_OF_FLOAT32 if case != "long rows, strides"]


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last")
@pytest.mark.parametrize("activation", [None, "Relu", "SiLU", "Tanh"])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *(("float16", case) for case in CASES),
        *(("float32", case) for case in CASES_OF_FLOAT32),
        *(("ieee", case) for case in CASES_OF_IEEE),
    ],
)
def test_it_is_the_definition_with_every_epilogue(kind, case, has_residual, activation):
    x_shape, w_shape, attributes = CASES_OF_FLOAT32[case]
    attributes = {**attributes, **({"activation": activation} if activation else {})}
    element_type, precision = ("float32", "ieee") if kind == "ieee" else (kind, "tf32")
    rng = np.random.default_rng(0)
    x = rng.standard_normal(x_shape, np.float32).astype(element_type)
    w = (rng.standard_normal(w_shape, np.float32) / np.sqrt(np.prod(w_shape[1:]))).astype(element_type)
    b = rng.standard_normal(w_shape[:1], np.float32).astype(element_type)
    problem = _native.Problem(x_shape, w_shape, True, element_type, precision, **NHWC, **attributes)
    z = rng.standard_normal(problem.output_shape, np.float32).astype(element_type) if has_residual else None
    conv = {name: value for name, value in attributes.items() if name != "activation"}
    expected = reference_conv(
        np.moveaxis(x, -1, 1).astype(np.float64), w.astype(np.float64), b.astype(np.float64), conv
    )
    expected = np.moveaxis(expected, 1, -1) + (0 if z is None else z.astype(np.float64))
    functions = {None: lambda v: v, "Relu": lambda v: np.maximum(v, 0), "Tanh": np.tanh}
    functions["SiLU"] = lambda v: v / (1 + np.exp(-v))
    expected = functions[activation](expected)
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    y = _native.DeviceArray(problem.output_shape, element_type, 0, 4096)
    layouts = {**NHWC, **({"residual_layout": "NHWC"} if has_residual else {})}
    residual = None if z is None else _native.DeviceArray.from_numpy(z)
    if has_residual:
        problem = _native.Problem(
            x_shape, w_shape, True, element_type, precision, residual_shape=z.shape, **layouts, **attributes
        )
    tilings = [each["tiling"] for each in _native.alternatives(problem, "channels_last", 1000)]
    count = len(tilings)
    splits = [f"splits {blocks}" for blocks in (2, 4, 8)]
    split = {next((i for i, tiling in enumerate(tilings) if words in tiling), 0) for words in splits}
    if case.startswith("a small grid"):
        assert all(any(words in tiling for tiling in tilings) for words in splits)
    # The first tiling of each kernel of which a multiprocessor runs two blocks.
    paired = {
        tiling.split(" images")[0]: i
        for i, tiling in reversed(list(enumerate(tilings)))
        if "blocks" in tiling
    }
    assert not case.startswith("short main loops") or kind == "ieee" or "14, false" in paired
    for tiling in sorted({0, 1, count // 2, count - 1, *split, *paired.values()} & set(range(count))):
        y.poison()
        _native.conv_device(
            *arrays, y, residual=residual, algorithm="channels_last", alternative=tiling,
            precision=precision, prepared=tiling % 2 == 0, **layouts, **attributes,
        )  # fmt: skip
        # Operands rounded to TF32 leave 3e-4, results rounded to float16 less.
        limit = 1e-6 if kind == "ieee" else 5e-4
        error = y.to_numpy().astype(np.float64) - expected
        assert np.linalg.norm(error) < limit * np.linalg.norm(expected), tiling
        assert y.damage() is None


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last")
def test_tf32_rounds_to_the_nearest():
    """Truncated operands would make sums of positive terms 3e-4 too small."""
    rng = np.random.default_rng(8)
    x = rng.uniform(1, 2, (4, 33, 33, 12)).astype(np.float32)
    w = rng.uniform(1, 2, (24, 12, 5, 5)).astype(np.float32)
    expected = reference_conv(np.moveaxis(x, -1, 1).astype(np.float64), w.astype(np.float64), None, {})
    expected = np.moveaxis(expected, 1, -1)
    y = _native.DeviceArray(expected.shape)
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w)]
    _native.conv_device(*arrays, None, y, algorithm="channels_last", **NHWC)
    assert abs(np.mean((y.to_numpy() - expected) / expected)) < 5e-5


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last")
@pytest.mark.parametrize("case", [((1, 7, 7, 512), (512, 512, 3, 3)), ((4, 28, 28, 512), (128, 512, 3, 3))])
def test_long_sums_of_positive_terms_are_as_accurate_as_float32(case):
    """Each wgmma truncates what it adds to: 432 of them on one accumulator would leave 1e-5."""
    x_shape, w_shape = case
    rng = np.random.default_rng(9)
    x, w = (rng.uniform(0, 1e10, shape).astype(np.float32) for shape in (x_shape, w_shape))
    expected = reference_conv(np.moveaxis(x, -1, 1).astype(np.float64), w.astype(np.float64), None, {})
    expected = np.moveaxis(expected, 1, -1)
    y = _native.DeviceArray(expected.shape)
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w)]
    _native.conv_device(*arrays, None, y, algorithm="channels_last", precision="ieee", **NHWC)
    assert np.max(np.abs(y.to_numpy() / expected - 1)) < 1.5e-6


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last")
def test_infinities_and_nan_stay_what_they_are_in_two_parts():
    rng = np.random.default_rng(10)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((2, 16, 16, 32), (72, 32, 3, 3)))
    x[0, 3, 3, 3], x[0, 9, 9, 5], x[1, 4, 4, 4] = np.inf, -np.inf, np.nan
    # A large part would be beyond the largest number, if it were rounded.
    x[1, 10, 10, 7], w[:, 7] = np.finfo(np.float32).max, np.abs(w[:, 7]) / 16
    w[5, 6, 1, 1] = np.inf
    with np.errstate(invalid="ignore"):
        expected = reference_conv(
            np.moveaxis(x, -1, 1).astype(np.float64), w.astype(np.float64), None, {"pads": [1] * 4}
        )
    expected = np.moveaxis(expected, 1, -1)
    attributes = {"pads": [1] * 4, **NHWC}
    problem = problem_of(x.shape, w.shape, "ieee", **attributes)
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w)]
    for tiling in range(0, len(_native.alternatives(problem, "channels_last", 1000)), 7):
        y = _native.DeviceArray(expected.shape)
        _native.conv_device(
            *arrays, None, y, algorithm="channels_last", alternative=tiling, precision="ieee", **attributes
        )
        np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-4, atol=1e-4)
