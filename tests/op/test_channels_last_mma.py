"""`channels_last_mma`: the choice of cards without wgmma for NHWC tensors, its refusals, and its results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from card_algorithms import capability
from convswap import _native
from convswap.reference.operators import reference_conv
from drawn_codes import drawn

ALGORITHM = "channels_last_mma"
NHWC = {"input_layout": "NHWC", "output_layout": "NHWC"}
HOPPER = {"compute_capability": 90}
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
# Relative L2 errors: operands rounded to TF32 leave 3e-4, and a result in 16 bits is rounded once.
TOLERANCES = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 5e-4}

LAYERS = [
    ((64, 56, 56, 64), (64, 64, 3, 3), {"pads": [1] * 4}),
    ((64, 28, 28, 128), (128, 128, 3, 3), {"pads": [1] * 4}),
    ((64, 14, 14, 256), (256, 256, 3, 3), {"pads": [1] * 4}),
    ((64, 7, 7, 512), (512, 512, 3, 3), {"pads": [1] * 4}),
    ((64, 56, 56, 256), (512, 256, 1, 1), {"strides": [2, 2]}),
    ((64, 56, 56, 64), (256, 64, 1, 1), {}),
    ((8, 4096, 256), (256, 256, 7), {"pads": [9, 9], "dilations": [3]}),
    ((4, 32, 32, 32, 32), (32, 32, 3, 3, 3), {"pads": [1] * 6}),
]


def problem_of(x_shape, w_shape, element_type="float16", **attributes) -> _native.Problem:
    return _native.Problem(x_shape, w_shape, type=element_type, **{**NHWC, **attributes})


@pytest.mark.parametrize("capability", [80, 86, 89, 100, 120])
@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), LAYERS)
def test_cards_without_wgmma_take_it_for_nhwc_tensors(x_shape, w_shape, attributes, element_type, capability):
    problem = problem_of(x_shape, w_shape, element_type, **attributes)
    chosen = _native.choose(problem, "cuda", compute_capability=capability)
    estimates = {
        name: _native.alternatives(problem, name, 1, compute_capability=capability)[0]["milliseconds"]
        for name in {chosen, ALGORITHM}
    }
    # Others multiply float32 as scaled float16, at twice the rate of TF32. On cards with the rates of 10.0
    # many_channels is estimated as fast for one of the layers.
    is_equal = estimates[ALGORITHM] < 1.02 * estimates[chosen]
    assert is_equal or (element_type == "float32" and chosen in ("many_channels", "few_channels"))
    kernels = _native.kernels_of(problem, "cuda", ALGORITHM, compute_capability=capability)
    assert not any("layout::" in kernel for kernel in kernels)


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), LAYERS)
def test_channels_last_is_estimated_faster_on_cards_with_wgmma(x_shape, w_shape, attributes, element_type):
    problem = problem_of(x_shape, w_shape, element_type, **attributes)
    by_wgmma, by_mma = (
        _native.alternatives(problem, name, 1, **HOPPER)[0]["milliseconds"]
        for name in ("channels_last", ALGORITHM)
    )
    assert by_wgmma < by_mma
    assert _native.choose(problem, "cuda", **HOPPER) == "channels_last"


@pytest.mark.parametrize(
    ("problem", "capability", "reason"),
    [
        (
            _native.Problem((1, 64, 8, 8), (64, 64, 3, 3), type="float16"),
            80,
            "it takes x, y and the residual in NHWC",
        ),
        (
            problem_of((1, 8, 8, 64), (64, 64, 3, 3), "float64"),
            80,
            "it takes float32, float16, bfloat16 and codes",
        ),
        (
            problem_of((1, 8, 8, 64), (64, 64, 3, 3), "float32", precision="ieee"),
            80,
            "it computes float32 in precision tf32 alone",
        ),
        (
            problem_of((1, 8, 8, 64), (64, 64, 3, 3), "bfloat16"),
            75,
            "it needs compute capability 8.0 or newer",
        ),
        (
            problem_of((1, 8, 8, 64), (64, 64, 3, 3), "float32"),
            75,
            "it needs compute capability 8.0 or newer",
        ),
        (problem_of((1, 8, 8, 12), (64, 12, 3, 3)), 75, "it takes channels and filters in multiples of 8"),
        (problem_of((1, 8, 8, 12), (64, 12, 3, 3)), 80, "it takes channels and filters in multiples of 8"),
        (problem_of((1, 8, 8, 16), (12, 16, 3, 3)), 80, "it takes channels and filters in multiples of 8"),
        (
            problem_of((1, 8, 8, 6), (64, 6, 3, 3), "float32"),
            80,
            "it takes channels and filters in multiples of 4",
        ),
        (
            problem_of((1, 8, 8, 64), (64, 4, 3, 3), group=16),
            80,
            "it takes channels and filters of a group in multiples of 8",
        ),
        (
            problem_of((1, 8, 8, 8, 64), (64, 64, 1, 1, 1), strides=[2**20, 1, 1], pads=[2**30, *[0] * 5]),
            80,
            "its indices have 32 bits",
        ),
        (problem_of((0, 8, 8, 64), (64, 64, 3, 3)), 80, "the output is empty"),
        (problem_of((1, 0, 8, 64), (64, 64, 1, 3), pads=[1] * 4), 80, "the input is empty"),
    ],
)
def test_it_says_why_it_cannot(problem, capability, reason):
    assert _native.why_not(problem, ALGORITHM, "cuda", compute_capability=capability).startswith(reason)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), LAYERS)
def test_cards_of_7_5_compute_float16_on_their_tensor_cores(x_shape, w_shape, attributes, layout):
    if layout == "NCHW":
        x_shape = (x_shape[0], x_shape[-1], *x_shape[1:-1])
    layouts = {"input_layout": layout, "output_layout": layout}
    problem = problem_of(x_shape, w_shape, **layouts, **attributes)
    assert _native.choose(problem, "cuda", compute_capability=75) == ALGORITHM
    kernels = _native.kernels_of(problem, "cuda", ALGORITHM, compute_capability=75)
    assert any(kernel.startswith("channels_last_mma::kernel_75<Float16, ") for kernel in kernels)
    assert any("layout::" in kernel for kernel in kernels) is (layout == "NCHW")


def test_cards_of_7_5_transpose_a_tensor_once_behind_a_depthwise_convolution():
    front = {"depthwise_shape": (32, 1, 3, 3), "depthwise_pads": [1] * 4}

    def estimate(input_layout, output_layout):
        x_shape = (8, 32, 56, 56) if input_layout == "NCHW" else (8, 56, 56, 32)
        layouts = {"input_layout": input_layout, "output_layout": output_layout}
        problem = problem_of(x_shape, (64, 32, 1, 1), **layouts, **front)
        return _native.estimates(problem, "cuda", compute_capability=75)[ALGORITHM]

    # y in NHWC needs no transposition, wherever x comes from.
    assert max(estimate("NCHW", "NHWC"), estimate("NHWC", "NHWC")) < estimate("NCHW", "NCHW")


def test_cards_of_7_5_compute_codes_on_their_tensor_cores():
    codes = drawn((16, 28, 28, 64), (256, 64, 1, 1), **NHWC).problem()
    assert _native.choose(codes, "cuda", compute_capability=75) == ALGORITHM


@pytest.mark.parametrize("capability", [75, 80, 86, 90, 120])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [*LAYERS, ((1, 7, 7, 8), (8, 8, 1, 1), {}), ((2, 40, 40, 64), (64, 64, 12, 11), {"strides": [9, 9]})],
)
def test_every_card_has_tilings_of_all_sizes(x_shape, w_shape, attributes, capability):
    problem = problem_of(x_shape, w_shape, **attributes)
    tilings = _native.alternatives(problem, ALGORITHM, 1000, compute_capability=capability)
    times = [tiling["milliseconds"] for tiling in tilings]
    assert times == sorted(times) and times[0] > 0
    sizes = {tiling["tiling"].partition(" stages ")[0] for tiling in tilings}
    largest = "128, 64, 2, 2" if capability == 75 else "128, 128, 2, 2"
    assert {largest, "64, 64, 2, 2", "32, 32, 2, 2"} <= sizes


def estimate_of_codes(has_residual=False, **attributes) -> float:
    codes = drawn((16, 28, 28, 64), (256, 64, 1, 1), has_residual=has_residual, **NHWC, **attributes)
    return _native.alternatives(codes.problem(), ALGORITHM, 1, **HOPPER)[0]["milliseconds"]


def test_estimates_of_codes_count_the_instructions_of_their_results():
    relu, rounded = {"activation": "Relu"}, {"sum_scale": 0.5, "sum_zero_point": 12}
    in_order = [
        {},
        relu,  # narrower limits: the zero point is not the least code
        {"sum_zero_point": 12},  # a table
        {"has_residual": True, **relu},
        {"has_residual": True, **relu, **rounded},
        {"has_residual": True, **rounded, "activation": "LeakyRelu", "activation_alpha": 0.125},
    ]
    estimates = [estimate_of_codes(**attributes) for attributes in in_order]
    assert estimates == sorted(set(estimates))


CASES = {
    "3x3": ((3, 20, 28, 72), (64, 72, 3, 3), {"pads": [1] * 4}),
    "many filters": ((9, 7, 7, 136), (200, 136, 3, 3), {"pads": [1] * 4}),
    "strides": ((2, 31, 33, 64), (128, 64, 3, 3), {"pads": [1, 0, 1, 2], "strides": [2, 2]}),
    "strides of 9": ((2, 40, 41, 64), (64, 64, 5, 5), {"strides": [9, 9]}),
    "dilations": ((2, 31, 33, 24), (88, 24, 3, 5), {"pads": [2, 4, 2, 4], "dilations": [2, 2]}),
    "one tap": ((4, 30, 30, 256), (64, 256, 1, 1), {}),
    "one tap, stride": ((4, 30, 30, 256), (320, 256, 1, 1), {"strides": [2, 2]}),
    "one K chunk": ((4, 30, 30, 32), (64, 32, 1, 1), {}),
    "8 channels": ((2, 31, 33, 8), (40, 8, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "groups": ((2, 12, 12, 96), (144, 32, 3, 3), {"pads": [1] * 4, "group": 3}),
    "groups of 8": ((2, 28, 28, 64), (64, 8, 3, 3), {"pads": [1] * 4, "group": 8}),
    "1-D": ((2, 500, 64), (64, 64, 7), {"pads": [3, 3]}),
    "3-D": ((1, 6, 9, 9, 32), (48, 32, 3, 3, 3), {"pads": [1] * 6, "strides": [2, 1, 1]}),
}
ACTIVATIONS = {
    None: lambda v: v,
    "Relu": lambda v: np.maximum(v, 0),
    "SiLU": lambda v: v / (1 + np.exp(-v)),
    "Tanh": np.tanh,
}


def arrays_of(x_shape, w_shape, element_type):
    """Return x, w and the bias."""
    rng = np.random.default_rng(0)
    scales = (1, 1 / np.sqrt(np.prod(w_shape[1:])), 1)
    return [
        (scale * rng.standard_normal(shape)).astype(TYPES[element_type])
        for scale, shape in zip(scales, (x_shape, w_shape, w_shape[:1]), strict=True)
    ]


def convolved(x, w, b, attributes):
    """Return the convolution in float64, in NHWC."""
    x, w, b = (array.astype(np.float64) for array in (x, w, b))
    return np.moveaxis(reference_conv(np.moveaxis(x, -1, 1), w, b, attributes), 1, -1)


def skip_without(element_type):
    """Skip the test if the card's tensor cores do not compute the type."""
    if element_type != "float16" and capability() < 80:
        pytest.skip(f"{ALGORITHM} needs compute capability 8.0 for {element_type}")


@pytest.mark.gpu
@pytest.mark.algorithm(ALGORITHM)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_definition_with_every_epilogue(case, element_type, has_residual, activation):
    skip_without(element_type)
    x_shape, w_shape, conv = CASES[case]
    x, w, b = arrays_of(x_shape, w_shape, element_type)
    expected = convolved(x, w, b, conv)
    layouts = {**NHWC, **({"residual_layout": "NHWC"} if has_residual else {})}
    z = np.random.default_rng(1).standard_normal(expected.shape).astype(TYPES[element_type])
    if has_residual:
        expected = expected + z.astype(np.float64)
    expected = ACTIVATIONS[activation](expected)
    attributes = {**conv, **layouts, **({"activation": activation} if activation else {})}
    residual = {"residual_shape": z.shape} if has_residual else {}
    problem = _native.Problem(x_shape, w_shape, True, element_type, **residual, **attributes)
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    y = _native.DeviceArray(expected.shape, element_type, 0, 4096)
    count = len(_native.alternatives(problem, ALGORITHM, 1000))
    # All tilings in the cases without an epilogue, whose times to compile count once.
    tilings = range(count) if activation is None else sorted({0, count // 3, count - 1})
    for tiling in tilings:
        y.poison()
        _native.conv_device(
            *arrays, y, residual=_native.DeviceArray.from_numpy(z) if has_residual else None,
            algorithm=ALGORITHM, alternative=tiling, prepared=tiling % 2 == 0, **attributes,
        )  # fmt: skip
        error = y.to_numpy().astype(np.float64) - expected
        assert np.linalg.norm(error) < TOLERANCES[element_type] * np.linalg.norm(expected), tiling
        assert y.damage() is None


@pytest.mark.gpu
@pytest.mark.algorithm(ALGORITHM)
@pytest.mark.parametrize("element_type", ["float16", "bfloat16"])
def test_a_pool_behind_it_is_the_definition(element_type):
    skip_without(element_type)
    x, w, b = arrays_of((2, 28, 28, 64), (128, 64, 3, 3), element_type)
    expected = np.maximum(convolved(x, w, b, {"pads": [1] * 4}), 0)
    expected = expected.reshape(2, 14, 2, 14, 2, 128).max(axis=(2, 4))
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    y = _native.DeviceArray(expected.shape, element_type, 0, 4096)
    _native.conv_device(
        *arrays, y, algorithm=ALGORITHM, pads=[1] * 4, activation="Relu",
        pool="MaxPool", pool_kernel_shape=[2, 2], pool_strides=[2, 2], **NHWC,
    )  # fmt: skip
    error = y.to_numpy().astype(np.float64) - expected
    assert np.linalg.norm(error) < TOLERANCES[element_type] * np.linalg.norm(expected)
    assert y.damage() is None


@pytest.mark.gpu
@pytest.mark.algorithm(ALGORITHM)
def test_tf32_rounds_to_the_nearest():
    """Truncated operands would make sums of positive terms 3e-4 too small."""
    skip_without("float32")
    rng = np.random.default_rng(8)
    x = rng.uniform(1, 2, (4, 33, 33, 12)).astype(np.float32)
    w = rng.uniform(1, 2, (24, 12, 5, 5)).astype(np.float32)
    expected = convolved(x, w, np.zeros(24), {})
    y = _native.DeviceArray(expected.shape)
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w)]
    _native.conv_device(*arrays, None, y, algorithm=ALGORITHM, **NHWC)
    assert abs(np.mean((y.to_numpy() - expected) / expected)) < 5e-5


@pytest.mark.gpu
@pytest.mark.algorithm(ALGORITHM)
@pytest.mark.parametrize("last", ["residual", "pool"])
@pytest.mark.parametrize("layouts", ["NCHW NCHW NCHW", "NHWC NCHW NCHW", "NCHW NHWC NCHW"])
def test_cards_of_7_5_transpose_tensors_to_nhwc(layouts, last):
    if capability() >= 80:
        pytest.skip("the card computes other layouts by other algorithms")
    x, w, b = arrays_of((3, 24, 9, 10), (40, 24, 3, 3), "float16")
    expected = reference_conv(*(array.astype(np.float64) for array in (x, w, b)), {"pads": [1] * 4})
    z = np.random.default_rng(1).standard_normal(expected.shape).astype(np.float16)
    names = ("input_layout", "output_layout", "residual_layout")
    attributes = dict(zip(names, layouts.split(), strict=True))
    if last == "residual":
        expected = np.maximum(expected + z.astype(np.float64), 0)
    else:
        # A residual in front of a pool would be rounded twice.
        del attributes["residual_layout"]
        attributes |= {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
        windows = np.maximum(expected, 0)[:, :, :8].reshape(3, 40, 4, 2, 5, 2)
        expected = windows.max((3, 5))
    in_layout = [
        np.ascontiguousarray(np.moveaxis(array, 1, -1)) if attributes.get(name) == "NHWC" else array
        for array, name in zip((x, expected, z), names, strict=True)
    ]
    x, expected, z = in_layout
    arrays = [_native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    y = _native.DeviceArray(expected.shape, "float16", 0, 4096)
    y.poison()
    _native.conv_device(
        *arrays, y, residual=_native.DeviceArray.from_numpy(z) if last == "residual" else None,
        algorithm=ALGORITHM, activation="Relu", pads=[1] * 4, **attributes,
    )  # fmt: skip
    error = y.to_numpy().astype(np.float64) - expected
    assert np.linalg.norm(error) < TOLERANCES["float16"] * np.linalg.norm(expected)
    assert y.damage() is None
