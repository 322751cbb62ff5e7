"""Pairs of a depthwise and another convolution: in one call, in two kernels, and by `separable`."""

from __future__ import annotations

import numpy as np
import pytest
from card_calls import ELEMENTS, assert_near, cast_to
from convswap import _native
from convswap.errors import ConvswapError
from refused import refused

CLIP = {"depthwise_activation": "Clip", "depthwise_activation_alpha": 0.0, "depthwise_activation_beta": 6.0}


class Pair:
    """A depthwise convolution of 3x3 taps and the 1x1 convolution behind it, with their data."""

    def __init__(self, x: tuple[int, ...], filters: int, *, has_bias: bool = True, **attributes) -> None:
        self.attributes = {"depthwise_pads": [1, 1, 1, 1], **attributes}
        random = np.random.default_rng(0)
        channels = x[1]

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape, np.float32)

        self.x, self.d = normal(*x), normal(channels, 1, 3, 3)
        self.w = normal(filters, channels, 1, 1)
        self.db, self.b = (normal(channels), normal(filters)) if has_bias else (None, None)

    def problem(self, **options) -> _native.Problem:
        return _native.Problem(
            self.x.shape,
            self.w.shape,
            self.b is not None,
            depthwise_shape=self.d.shape,
            has_depthwise_bias=self.db is not None,
            **options,
            **self.attributes,
        )


# Tiles have 28 or 32 columns, and 2, 4 or 8 rows; a step is sixteen channels.
PAIRS = {
    "whole tiles": Pair((2, 32, 16, 56), 16, **CLIP),
    "more filters, channels that are no step": Pair((1, 21, 17, 36), 27, has_bias=False),
    "channels in fours": Pair((3, 40, 9, 64), 32, depthwise_activation="Relu"),
    "strided": Pair((2, 48, 30, 112), 24, depthwise_strides=[2, 2], **CLIP),
    "strided, of odd height": Pair((1, 7, 23, 60), 5, depthwise_strides=[2, 2], depthwise_pads=[1, 1, 2, 0]),
    "the smallest": Pair((1, 1, 1, 4), 1),
    "HardSwish": Pair((1, 16, 8, 28), 16, depthwise_activation="HardSwish", activation="SiLU"),
}
TF32 = 2.0**-11


def arrays_of(pair: Pair, element: str, z: np.ndarray | None = None) -> dict[str, np.ndarray | None]:
    names = ("x", "w", "b", "depthwise", "depthwise_bias", "residual")
    return dict(zip(names, cast_to([pair.x, pair.w, pair.b, pair.d, pair.db, z], element), strict=True))


def conv(x, w, b, algorithm: str, attributes: dict, **arrays) -> np.ndarray:
    arrays = {name: each for name, each in arrays.items() if each is not None}
    return _native.conv(x, w, b, algorithm=algorithm, **arrays, **attributes)


def attributes_of_both(pair: Pair) -> tuple[dict, dict]:
    """Return the attributes of both convolutions as separate nodes."""
    first = {
        name.removeprefix("depthwise_"): value
        for name, value in pair.attributes.items()
        if name.startswith("depthwise_")
    }
    second = {name: value for name, value in pair.attributes.items() if not name.startswith("depthwise_")}
    return {"group": pair.x.shape[1], **first}, second


def intermediate(pair: Pair, element: str) -> np.ndarray:
    """Return the output of the depthwise convolution in float64."""
    first, _ = attributes_of_both(pair)
    arrays = arrays_of(pair, element)
    wide = [
        None if arrays[name] is None else arrays[name].astype(np.float64)
        for name in ("x", "depthwise", "depthwise_bias")
    ]
    return _native.conv(*wide, algorithm="reference", **first)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("algorithm", ["auto", "direct", "reference"])
@pytest.mark.parametrize("name", PAIRS)
def test_on_the_cpu_it_is_one_convolution_after_the_other(name, algorithm, element):
    pair = PAIRS[name]
    first, second = attributes_of_both(pair)
    arrays = arrays_of(pair, element)
    u = conv(arrays["x"], arrays["depthwise"], arrays["depthwise_bias"], algorithm, first)
    shape = conv(u, arrays["w"], arrays["b"], algorithm, second).shape
    z = np.random.default_rng(1).standard_normal(shape).astype(u.dtype)
    expected = conv(u, arrays["w"], arrays["b"], algorithm, second, residual=z)
    y = conv(**{**arrays, "residual": z}, algorithm=algorithm, attributes=pair.attributes)
    assert y.dtype == expected.dtype and y.tobytes() == expected.tobytes()


def test_other_ranks_filters_and_groups_are_computed_too():
    random = np.random.default_rng(2)
    for rank in (1, 3):
        x, d = random.standard_normal((2, 6, *(9,) * rank)), random.standard_normal((6, 1, *(2,) * rank))
        w = random.standard_normal((4, 3, *(3,) * rank))
        attributes = {"strides": [2] * rank, "dilations": [3] * rank, "pads": [1, 0] * rank}
        u = _native.conv(x, d, group=6, **attributes)
        expected = _native.conv(u, w, group=2)
        attributes = {f"depthwise_{name}": value for name, value in attributes.items()}
        assert np.array_equal(_native.conv(x, w, depthwise=d, group=2, **attributes), expected)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            {"depthwise_shape": (7, 1, 3, 3)},
            r"depthwise weights of shape \[7, 1, 3, 3\].*each channel.*\[1, 8, 9, 12\]",
        ),
        ({"depthwise_shape": (8, 2, 3, 3)}, r"\(C, 1, filter...\)"),
        ({"depthwise_shape": (8,)}, r"\(C, 1, filter...\)"),
        ({"depthwise_shape": (0, 1, 3, 3)}, r"\(C, 1, filter...\)"),
        ({"depthwise_shape": (8, 1, 3)}, "the depthwise convolution in front: .*as many dimensions"),
        ({"depthwise_shape": (8, 1, 12, 3)}, "the depthwise convolution in front: .*reaches over 12"),
        ({"depthwise_shape": (8, 1, 3, 3), "depthwise_pads": [1, 1]}, "pads"),
        ({"depthwise_shape": (8, 1, 3, 3), "depthwise_strides": [0, 1]}, "strides"),
        ({"depthwise_shape": (8, 1, 3, 3), "depthwise_activation": "Reul"}, "Relu"),
        ({"depthwise_pads": [1, 1, 1, 1]}, "no weights of one"),
        ({"depthwise_activation": "Relu"}, "no weights of one"),
        ({"has_depthwise_bias": True}, "no weights of one"),
        (
            {"depthwise_shape": (8, 1, 3, 3), "residual_shape": (1, 4, 9, 12)},
            r"residual of shape.*\[1, 4, 7, 10\]",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_in_a_line(arguments, words):
    with refused(words):
        _native.Problem((1, 8, 9, 12), (4, 8, 1, 1), **arguments)


def test_instruction_set_is_one_for_one_convolution():
    pair = PAIRS["whole tiles"]
    with pytest.raises(ConvswapError, match="'baseline' was given for a convolution with a depthwise"):
        conv(
            **arrays_of(pair, "float32"),
            algorithm="direct",
            attributes=pair.attributes | {"instruction_set": "baseline"},
        )


def test_a_pool_behind_leaves_no_choice_among_tiles():
    pool = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
    problem = Pair((2, 32, 16, 56), 16, **pool).problem()
    assert len(_native.alternatives(problem, "separable", 20, compute_capability=90)) == 1


def test_bytes_and_operations_leave_out_the_intermediate_tensor():
    pair = PAIRS["strided"]
    both = pair.problem()
    first, second = attributes_of_both(pair)
    alone = _native.Problem(pair.x.shape, pair.d.shape, True, **first)
    pointwise = _native.Problem(alone.output_shape, pair.w.shape, True, **second)
    assert both.output_shape == pointwise.output_shape
    assert both.operations == alone.operations + pointwise.operations
    assert both.bytes == alone.bytes + pointwise.bytes - 2 * 4 * int(np.prod(alone.output_shape))
    assert both.text == f"{pointwise.text} of=({alone.text})"


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_the_rule_takes_separable_for_large_images_and_two_kernels_for_small_ones(capability):
    def kernels(problem, algorithm="auto"):
        return _native.kernels_of(problem, "cuda", algorithm, compute_capability=capability)

    large = Pair((64, 32, 112, 112), 16, **CLIP).problem()
    assert _native.choose(large, "cuda", compute_capability=capability) == "separable"
    assert [name.split("::")[0] for name in kernels(large)] == ["separable"]
    assert [name.split("::")[0] for name in kernels(large, "tiled")] == ["sliding_rows", "tiled"]
    small = Pair((1, 576, 14, 14), 32, **CLIP).problem()
    chosen = _native.choose(small, "cuda", compute_capability=capability)
    assert chosen != "separable" and len(kernels(small)) == 2
    # In two kernels the estimate includes the depthwise convolution.
    estimates = _native.estimates(small, "cuda", compute_capability=capability)
    alone = _native.Problem((1, 576, 14, 14), (32, 576, 1, 1), True)
    assert estimates[chosen] > _native.estimates(alone, "cuda", compute_capability=capability)[chosen]


def test_without_memory_for_the_intermediate_tensor_one_kernel_is_left():
    large, small = Pair((64, 32, 112, 112), 16).problem(), Pair((1, 576, 14, 14), 48).problem()
    options = {"compute_capability": 90, "lends_scratch": False}
    assert "ONNX Runtime 1.18" in _native.why_not(large, "tiled", "cuda", **options)
    assert _native.choose(large, "cuda", **options) == "separable"
    assert "ONNX Runtime 1.18" in _native.why_not(small, "auto", "cuda", **options)


@pytest.mark.parametrize(
    "problem, words",
    [
        (_native.Problem((1, 8, 8, 8), (8, 8, 1, 1)), "together with a 1x1 convolution behind"),
        (Pair((1, 8, 8, 8), 33).problem(), "up to 32 filters"),
        (Pair((1, 8, 8, 10), 8).problem(), "multiple of 4"),
        (Pair((1, 8, 8, 8), 8, depthwise_pads=[0, 0, 0, 0]).problem(), "padding of 1"),
        (Pair((1, 8, 8, 8), 8, depthwise_strides=[2, 1]).problem(), "same stride"),
        (Pair((1, 8, 8, 8), 8, depthwise_dilations=[2, 2]).problem(), "undilated"),
        (Pair((1, 8, 8, 8), 8, strides=[2, 2]).problem(), "without stride"),
        (Pair((1, 8, 8, 8), 8, pads=[0, 0, 1, 1]).problem(), "padding or groups"),
        (Pair((1, 8, 8, 8), 8).problem(precision="ieee"), "precision ieee"),
        (Pair((1, 8, 8, 8), 8).problem(type="float64"), "float64"),
    ],
)
def test_unsupported_problems_have_a_reason(problem, words):
    assert words in _native.why_not(problem, "separable", "cuda", compute_capability=90)
    assert not _native.why_not(problem, "naive", "cuda", compute_capability=90)


def test_it_needs_compute_capability_8():
    why_not = _native.why_not(PAIRS["strided"].problem(), "separable", "cuda", compute_capability=75)
    assert "8.0" in why_not


def pair_on_card(pair: Pair, element: str, algorithm: str, z=None, **options) -> np.ndarray:
    """Return the output of the algorithm on the card, written into memory that held NaN."""
    arrays = arrays_of(pair, element, z)
    residual = {} if z is None else {"residual_shape": z.shape}
    y = _native.DeviceArray(pair.problem(type=element, **residual).output_shape, arrays["x"].dtype.name)
    y.poison()
    on_card = {
        name: _native.DeviceArray.from_numpy(each) for name, each in arrays.items() if each is not None
    }
    x, w, b = on_card.pop("x"), on_card.pop("w"), on_card.pop("b", None)
    _native.conv_device(x, w, b, y, algorithm=algorithm, **on_card, **options, **pair.attributes)
    return y.to_numpy()


def assert_is_right(y: np.ndarray, pair: Pair, element: str, z=None) -> None:
    _, second = attributes_of_both(pair)
    arrays = arrays_of(pair, element, z)
    u, w = intermediate(pair, element), arrays["w"].astype(np.float64)
    b = None if arrays["b"] is None else arrays["b"].astype(np.float64)
    residual = {} if z is None else {"residual": arrays["residual"].astype(np.float64)}
    reference = _native.conv(u, w, b, algorithm="reference", **residual, **second)
    # The intermediate tensor is rounded to the element type, or to TF32; no activation has a slope above 1.1.
    rounding = {"float32": TF32, "float16": 2.0**-11, "bfloat16": 2.0**-8}[element]
    pool = {name: each for name, each in second.items() if name.startswith("pool")}
    magnitude = _native.conv(np.abs(u) + 0.01, np.abs(w), algorithm="reference", **pool)
    magnitude = 1.1 * (
        magnitude + (0 if b is None else np.abs(b)[:, None, None]) + (0 if z is None else np.abs(z))
    )
    assert_near(y, reference, magnitude, pair.x.shape[1] + 12, element, TF32, intermediate=rounding)
    if element != "float32":
        return
    assert np.linalg.norm(y - reference) <= 1e-3 * np.linalg.norm(reference)


@pytest.mark.gpu
@pytest.mark.algorithm("separable")
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", PAIRS)
def test_every_tile_of_it_is_the_definition_and_repeats(name, element):
    pair = PAIRS[name]
    tiles = len(_native.alternatives(pair.problem(type=element), "separable", 20))
    assert tiles == (4 if "strided" in name else 6)
    shape = pair.problem().output_shape
    for z in (None, np.random.default_rng(1).standard_normal(shape)):
        for number in range(tiles):
            y = pair_on_card(pair, element, "separable", z, alternative=number)
            assert_is_right(y, pair, element, z)
            assert y.tobytes() == pair_on_card(pair, element, "separable", z, alternative=number).tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["auto", "naive", "tiled", "few_channels", "sliced_k"])
@pytest.mark.parametrize("name", PAIRS)
def test_other_algorithms_compute_it_in_two_steps(name, algorithm):
    for element in ("float32", "float16"):
        assert_is_right(pair_on_card(PAIRS[name], element, algorithm), PAIRS[name], element)


@pytest.mark.gpu
@pytest.mark.algorithm("separable")
def test_pool_is_a_kernel_of_its_own():
    pair = Pair((2, 32, 16, 56), 16, pool="MaxPool", pool_kernel_shape=[2, 2], pool_strides=[2, 2])
    assert_is_right(pair_on_card(pair, "float32", "separable"), pair, "float32")


@pytest.mark.gpu
@pytest.mark.algorithm("separable")
def test_infinities_and_nan_reach_the_outputs_that_see_them_and_no_others():
    pair = Pair((2, 32, 16, 56), 16)
    flat = pair.x.reshape(-1)
    flat[[0, flat.size // 2 + 17, flat.size - 1]] = np.inf, np.nan, -np.inf
    reference = _native.conv(intermediate(pair, "float32"), pair.w.astype(np.float64), algorithm="reference")
    y = pair_on_card(pair, "float32", "separable")
    assert np.array_equal(np.isfinite(y), np.isfinite(reference)) and not np.isfinite(reference).all()
