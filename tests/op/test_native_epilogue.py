"""Epilogues in the Python bindings: problems, plans and direct calls."""

from __future__ import annotations

import re

import numpy as np
import pytest
from convswap import _native
from convswap.errors import ConvswapError
from each_case import each
from fused_cases import ACTIVATIONS, POOLS, SUM_ERROR, TYPES, W, X, check, draw, fused_attributes, reference

POOL = {"pool": "MaxPool", "pool_kernel_shape": [2, 3], "pool_strides": [2, 2]}


def inputs_and_residual(arrays: dict[str, np.ndarray]) -> tuple[list[np.ndarray | None], np.ndarray | None]:
    """Return x, w and b, and the residual."""
    return [arrays.get(name) for name in "xwb"], arrays.get("z")


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
@each("residual", [False, True])
@each("pool", POOLS.values())
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_direct_call_computes_what_is_fused(activation, pool, residual, algorithm):
    arrays = draw("float32", residual=residual)
    inputs, z = inputs_and_residual(arrays)
    y = _native.conv(*inputs, residual=z, algorithm=algorithm, **fused_attributes(activation, pool))
    check(y, reference(arrays, activation, pool, {}), "float32")


@pytest.mark.parametrize("instruction_set", _native.direct_instruction_sets())
def test_direct_keeps_the_sign_of_a_zero(instruction_set):
    x, w = -np.ones((1, 16, 8, 8), np.float32), np.ones((16, 16, 1, 1), np.float32)
    y = _native.conv(x, w, activation="HardSwish", algorithm="direct", instruction_set=instruction_set)
    assert not y.any() and np.signbit(y).all()


def test_direct_pools_some_of_many_filters_at_a_time():
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 20, 18, 17), np.float32)
    w = random.standard_normal((61, 20, 3, 3), np.float32)
    pool = {"pool": "MaxPool", "pool_kernel_shape": [3, 2], "pool_strides": [2, 2]}
    plain = _native.conv(x, w, algorithm="direct")
    windows = np.lib.stride_tricks.sliding_window_view(plain, (3, 2), (2, 3))[:, :, ::2, ::2]
    for threads in (1, 2):
        y = _native.conv(x, w, algorithm="direct", threads=threads, **pool)
        np.testing.assert_array_equal(y, windows.max((4, 5)))


@pytest.mark.parametrize("element_type", TYPES)
def test_direct_call_takes_a_residual_of_every_type(element_type):
    arrays = draw(element_type, residual=True)
    inputs, z = inputs_and_residual(arrays)
    pool = POOLS["average with its padding"]
    y = _native.conv(*inputs, residual=z, algorithm="reference", **fused_attributes("Elu", pool))
    check(y, reference(arrays, "Elu", pool, {}), element_type)


@pytest.mark.gpu
@each("residual", [False, True])
@each("pool", POOLS.values())
@pytest.mark.parametrize("activation", ["None", "Tanh", "Clip", "SiLU"])
def test_direct_call_on_the_card_computes_what_is_fused(activation, pool, residual):
    arrays = draw("float32", residual=residual)
    on_card = {name: _native.DeviceArray.from_numpy(array) for name, array in arrays.items()}
    inputs, z = [on_card.get(name) for name in "xwb"], on_card.get("z")
    attributes = fused_attributes(activation, pool)
    expected = reference(arrays, activation, pool, {})
    problem = _native.Problem(
        arrays["x"].shape,
        arrays["w"].shape,
        True,
        precision="ieee",
        residual_shape=arrays["z"].shape if residual else None,
        **attributes,
    )
    y = _native.DeviceArray(problem.output_shape)
    names = [entry.name for entry in _native.catalog() if entry.device == "cuda"]
    supporting = [name for name in names if not _native.why_not(problem, name, "cuda")]
    assert "naive" in supporting
    for name in supporting:
        y.poison()
        _native.conv_device(*inputs, y, residual=z, algorithm=name, precision="ieee", **attributes)
        # Tensor cores truncate sums.
        assert np.abs(y.to_numpy() - expected).max() <= 8 * SUM_ERROR


def test_problem_knows_what_is_fused():
    residual = (2, 6, 9, 11)
    plain = _native.Problem((2, 3, 11, 13), (6, 3, 3, 3), True)
    fused = _native.Problem(
        (2, 3, 11, 13),
        (6, 3, 3, 3),
        True,
        residual_shape=residual,
        activation="Elu",
        activation_alpha=0.5,
        **POOL,
    )
    assert (plain.output_shape, fused.output_shape) == (residual, (2, 6, 4, 5))
    assert fused.operations == plain.operations
    # The residual is read too, and the pooled output is written.
    assert fused.bytes - plain.bytes == 4 * 2 * 6 * 4 * 5
    assert fused.text == f"{plain.text} then=residual Elu(0.5) MaxPool 2x3 strides=2x2 pads=0x0x0x0"
    explanation = _native.explain(fused, "cpu")
    assert explanation["algorithm"] == _native.choose(fused, "cpu")
    assert (explanation["bytes"], explanation["operations"]) == (fused.bytes, fused.operations)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activation": "Rely"}, "unknown activation 'Rely'; did you mean 'Relu'?"),
        ({"activation": 3}, "activation 3: expected a string"),
        ({"activation_alpha": "low"}, "activation_alpha 'low': expected a number"),
        ({"group": 1.5}, "group 1.5: expected a whole number"),
        ({"pads": "0011"}, "pads '0011': expected a list of whole numbers"),
        ({"pool_stride": [1, 1]}, "unknown attribute 'pool_stride'; did you mean 'pool_strides'?"),
        ({"pool": "MaxPool"}, "pool_kernel_shape []: expected the rows and columns of a window"),
        (
            {"residual_shape": (2, 6, 9, 10)},
            "residual of shape [2, 6, 9, 10]: expected the convolution's output, [2, 6, 9, 11]",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(attributes, message):
    with pytest.raises(ConvswapError, match=re.escape(message)):
        _native.Problem((2, 3, 11, 13), (6, 3, 3, 3), **attributes)


def test_residual_of_another_type_is_refused():
    arrays = draw("float32", residual=True)
    with pytest.raises(ConvswapError, match="x is float32: expected residual to be the same"):
        _native.conv(arrays["x"], arrays["w"], residual=arrays["z"].astype(np.float64))


@pytest.mark.parametrize(
    ("options", "rounds_twice"),
    [
        ({"activation": "Tanh"}, True),
        ({"activation": "Clip", "activation_alpha": 0.1, "activation_beta": 6.0}, True),
        ({"pool": "AveragePool", "pool_kernel_shape": [2, 2]}, True),
        ({"residual_shape": (2, 6, 9, 11)}, True),
        ({"activation": "Clip", "activation_alpha": 0.0, "activation_beta": 6.0}, False),
        ({"activation": "Relu", "pool": "MaxPool", "pool_kernel_shape": [2, 2]}, False),
    ],
)
def test_results_are_not_rounded_between_two_kernels(options, rounds_twice):
    for element_type in ("float32", "float16", "bfloat16"):
        problem = _native.Problem(X, W, True, element_type, **options)
        reason = _native.why_not(problem, "implicit_gemm", "cuda", compute_capability=90)
        assert ("round twice" in reason) == (rounds_twice and element_type != "float32")
        for capability in (80, 90):
            chosen = _native.choose(problem, "cuda", compute_capability=capability)
            assert not _native.why_not(problem, chosen, "cuda", compute_capability=capability)


@pytest.mark.parametrize(
    ("options", "is_fused"),
    [
        ({"activation": "Relu"}, True),
        ({"activation": "Clip", "activation_alpha": 0.1, "activation_beta": 6.0}, True),
        ({"activation": "SiLU"}, True),
        ({"activation": "HardSwish"}, True),
        ({"activation": "Tanh"}, False),
        ({"activation": "Relu", "residual_shape": (2, 6, 9, 11)}, False),
        ({"activation": "Relu", "pool": "MaxPool", "pool_kernel_shape": [2, 2]}, False),
    ],
)
def test_few_channels_computes_clamps_and_swishes(options, is_fused):
    problem = _native.Problem(X, W, True, **options)
    kernels = _native.kernels_of(problem, "cuda", "few_channels", compute_capability=80)
    assert any("epilogue::" in kernel for kernel in kernels) == (not is_fused)


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
@pytest.mark.parametrize(
    ("activation", "reference_of"),
    [
        ("Tanh", np.tanh),
        ("Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("SiLU", lambda x: x / (1 + np.exp(-x))),
    ],
)
def test_activations_are_accurate_from_the_smallest_to_the_largest(activation, reference_of, algorithm):
    sizes = np.geomspace(1e-37, 80, 20_001, dtype=np.float32)
    special = np.array([0, np.inf, -np.inf, np.nan, 200, -200], np.float32)
    x = np.concatenate([sizes, -sizes, special])
    y = _native.conv(
        x.reshape(1, 1, 1, -1), np.ones((1, 1, 1, 1), np.float32), algorithm=algorithm, activation=activation
    ).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference_of(x.astype(np.float64))
    np.testing.assert_allclose(y[: -len(special)], expected[: -len(special)], rtol=4 * 2.0**-23)
    # Results below the smallest normal number may be 0.
    np.testing.assert_allclose(y[-len(special) :], expected[-len(special) :], rtol=2.0**-22, atol=2.0**-126)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["naive", "depthwise", "sliding_rows"])
@pytest.mark.parametrize(
    ("activation", "reference_of", "relative", "per_x"),
    [
        # exp(x) of a negative x has the relative error that rounding x once more would give.
        ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)), lambda x: (6 + np.maximum(0, -x)) * 2.0**-23, 0.0),
        ("SiLU", lambda x: x / (1 + np.exp(-x)), lambda x: (6 + np.maximum(0, -x)) * 2.0**-23, 0.0),
        # Near -3 the sum x / 6 + 1/2 cancels.
        ("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), np.zeros_like, 4 * 2.0**-24),
    ],
)
def test_activations_are_accurate_on_a_card(activation, reference_of, relative, per_x, algorithm):
    sizes = np.geomspace(1e-37, 100, 20_001, dtype=np.float32)
    special = np.array([0, np.inf, -np.inf, np.nan, 200, -200], np.float32)
    x = np.concatenate([sizes, -sizes, special]).reshape(-1, 1, 1, 1)
    # Filters with one tap in the middle, the only one that meets the images' single pixel.
    w = np.zeros((1, 1, 3, 3), np.float32)
    w[0, 0, 1, 1] = 1
    options = {"pads": [1, 1, 1, 1], "activation": activation}
    y = _native.DeviceArray(x.shape)
    y.poison()
    on_card = [_native.DeviceArray.from_numpy(each) for each in (x, w)]
    _native.conv_device(*on_card, None, y, algorithm=algorithm, **options)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference_of(x.astype(np.float64))
    finite = np.isfinite(x)
    np.testing.assert_array_equal(y.to_numpy()[~finite], expected[~finite])
    y, expected, x = y.to_numpy()[finite], expected[finite], x[finite]
    # Reciprocals that underflow are 0.
    bound = relative(x) * np.abs(expected) + per_x * np.abs(x) + 2.0**-126 * np.maximum(1, np.abs(x))
    assert np.all(np.abs(y - expected) <= bound)


@pytest.mark.parametrize(
    ("algorithm", "x", "w", "element"),
    [
        ("sliding_rows", (32, 96, 56, 56), (96, 1, 3, 3), "float32"),
        ("depthwise", (32, 96, 56, 56), (96, 1, 3, 3), "float16"),
        ("pointwise", (32, 64, 56, 56), (96, 64, 1, 1), "float16"),
        ("many_channels", (32, 64, 56, 56), (96, 64, 3, 3), "float16"),
        ("sliced_k", (8, 64, 14, 14), (96, 64, 3, 3), "float32"),
        ("toeplitz", (32, 3, 112, 112), (16, 3, 3, 3), "float16"),
        ("few_channels", (32, 3, 112, 112), (16, 3, 3, 3), "float32"),
        ("few_channels", (8, 256, 20, 20), (64, 256, 3, 3), "ieee"),
    ],
)
def test_an_estimate_counts_the_activation(algorithm, x, w, element):
    group = x[1] if w[1] == 1 else 1
    padding = {"pads": [w[2] // 2] * 4, "group": group}

    def estimate(activation: str) -> float | None:
        limits = {"activation_alpha": 0.0, "activation_beta": 6.0} if activation == "Clip" else {}
        kind, precision = ("float32", "ieee") if element == "ieee" else (element, "tf32")
        problem = _native.Problem(x, w, True, kind, precision, activation=activation, **limits, **padding)
        return _native.estimates(problem, "cuda", compute_capability=90).get(algorithm)

    plain, relu, hard_swish, silu = map(estimate, ("None", "Relu", "HardSwish", "SiLU"))
    assert plain == relu < hard_swish <= silu
    assert estimate("Clip") == relu
    # Gelu is a call or a second kernel; `pointwise` refuses it for 16 bits, which would round twice.
    gelu = estimate("Gelu")
    assert gelu is None if algorithm == "pointwise" else gelu > silu


@pytest.mark.parametrize("where", ["depthwise_activation", "activation"])
def test_the_estimate_of_separable_counts_both_activations(where):
    def estimate(activation: str) -> float:
        shapes = {"depthwise_shape": (32, 1, 3, 3), "depthwise_pads": [1] * 4, where: activation}
        problem = _native.Problem((64, 32, 112, 112), (16, 32, 1, 1), True, **shapes)
        return _native.estimates(problem, "cuda", compute_capability=90)["separable"]

    assert estimate("None") == estimate("Relu") < estimate("HardSwish") < estimate("SiLU") < estimate("Gelu")


def test_the_estimate_of_tiled_counts_called_activations():
    def estimate(activation: str, shape: tuple[int, ...], **pool) -> float:
        limits = {"activation_alpha": 0.0, "activation_beta": 6.0} if activation == "Clip" else {}
        problem = _native.Problem(shape, (16, 3, 3, 3), True, activation=activation, **limits, **pool)
        return _native.estimates(problem, "cuda", compute_capability=90)["tiled"]

    small, large = (1, 3, 224, 224), (32, 3, 224, 224)
    assert estimate("None", small) == estimate("Relu", small) < estimate("SiLU", small)
    # About in proportion to the results: one call for each.
    counted = [estimate("SiLU", shape) - estimate("None", shape) for shape in (small, large)]
    assert counted[1] == pytest.approx(32 * counted[0], rel=0.2)
    assert estimate("SiLU", small) == estimate("HardSwish", small) == estimate("Clip", small)
    # With a pool, activations are inlined.
    pool = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
    assert estimate("SiLU", small, **pool) == estimate("None", small, **pool)


def test_unused_activation_parameters_do_not_count():
    shapes = (2, 3, 9, 9), (4, 3, 3, 3)
    plain = _native.Problem(*shapes, activation="Relu")
    assert _native.Problem(*shapes, activation="Relu", activation_alpha=float("nan")).text == plain.text
    assert _native.explain(plain, "cpu")["algorithm"] == "direct"


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
@pytest.mark.parametrize("activation", ["LeakyRelu", "HardSigmoid"])
def test_nan_of_an_infinity_times_nothing_stays_in_a_pool(activation, algorithm):
    """A slope of 0 times an infinity is NaN, whether the activation comes before or after the maximum."""
    x = np.array([[[[-np.inf, 1.0], [2.0, 3.0]]]], np.float32)
    options = {"activation": activation, "activation_alpha": 0.0, "activation_beta": 0.5}
    pool = {"pool": "MaxPool", "pool_kernel_shape": [2, 2]}
    y = _native.conv(x, np.ones((1, 1, 1, 1), np.float32), algorithm=algorithm, **options, **pool)
    assert np.isnan(y).all()
