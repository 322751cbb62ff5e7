"""A depthwise convolution in front of another: as one call, in two steps, and the algorithm `separable`."""

from __future__ import annotations

import numpy as np
import pytest
from card_calls import ELEMENTS, assert_near, stored
from convswap import _native
from convswap.errors import ConvswapError

CLIP = {"depthwise_activation": "Clip", "depthwise_activation_alpha": 0.0, "depthwise_activation_beta": 6.0}


class Pair:
    """A depthwise convolution, the shape of its weights, and filters of one tap behind it."""

    def __init__(self, x: tuple[int, ...], filters: int, *, has_bias: bool = True, **attributes) -> None:
        self.attributes = {"depthwise_pads": [1, 1, 1, 1], **attributes}
        random = np.random.default_rng(0)
        channels = x[1]

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape, np.float32)

        self.x, self.d = normal(*x), normal(channels, 1, 3, 3)
        self.w = normal(filters, channels, 1, 1)
        self.db, self.b = (normal(channels), normal(filters)) if has_bias else (None, None)

    def problem(self, **how) -> _native.Problem:
        return _native.Problem(
            self.x.shape,
            self.w.shape,
            self.b is not None,
            depthwise_shape=self.d.shape,
            has_depthwise_bias=self.db is not None,
            **how,
            **self.attributes,
        )


# Tiles have 28 or 32 columns, and 2, 4 or 8 rows; sixteen channels are a step.
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
    return dict(zip(names, stored([pair.x, pair.w, pair.b, pair.d, pair.db, z], element), strict=True))


def conv(x, w, b, algorithm: str, attributes: dict, **more) -> np.ndarray:
    given = {name: each for name, each in more.items() if each is not None}
    return _native.conv(x, w, b, algorithm=algorithm, **given, **attributes)


def own_attributes(pair: Pair) -> tuple[dict, dict]:
    """Return the attributes of the depthwise convolution as of a node of its own, and those of the other."""
    first = {
        name.removeprefix("depthwise_"): value
        for name, value in pair.attributes.items()
        if name.startswith("depthwise_")
    }
    second = {name: value for name, value in pair.attributes.items() if not name.startswith("depthwise_")}
    return {"group": pair.x.shape[1], **first}, second


def between(pair: Pair, element: str) -> np.ndarray:
    """Return what is between the two, of float64 sums."""
    first, _ = own_attributes(pair)
    of = arrays_of(pair, element)
    wide = [
        None if of[name] is None else of[name].astype(np.float64)
        for name in ("x", "depthwise", "depthwise_bias")
    ]
    return _native.conv(*wide, algorithm="reference", **first)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("algorithm", ["auto", "direct", "reference"])
@pytest.mark.parametrize("name", PAIRS)
def test_on_the_cpu_it_is_one_convolution_after_the_other(name, algorithm, element):
    pair = PAIRS[name]
    first, second = own_attributes(pair)
    of = arrays_of(pair, element)
    u = conv(of["x"], of["depthwise"], of["depthwise_bias"], algorithm, first)
    shape = conv(u, of["w"], of["b"], algorithm, second).shape
    z = np.random.default_rng(1).standard_normal(shape).astype(u.dtype)
    expected = conv(u, of["w"], of["b"], algorithm, second, residual=z)
    y = conv(**{**of, "residual": z}, algorithm=algorithm, attributes=pair.attributes)
    assert y.dtype == expected.dtype and y.tobytes() == expected.tobytes()


def test_other_ranks_filters_and_groups_are_computed_too():
    random = np.random.default_rng(2)
    for rank in (1, 3):
        x, d = random.standard_normal((2, 6, *(9,) * rank)), random.standard_normal((6, 1, *(2,) * rank))
        w = random.standard_normal((4, 3, *(3,) * rank))
        how = {"strides": [2] * rank, "dilations": [3] * rank, "pads": [1, 0] * rank}
        u = _native.conv(x, d, group=6, **how)
        expected = _native.conv(u, w, group=2)
        given = {f"depthwise_{name}": value for name, value in how.items()}
        assert np.array_equal(_native.conv(x, w, depthwise=d, group=2, **given), expected)


@pytest.mark.parametrize(
    "given, words",
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
def test_what_does_not_fit_together_is_refused_in_a_line(given, words):
    with pytest.raises(ConvswapError, match=words) as raised:
        _native.Problem((1, 8, 9, 12), (4, 8, 1, 1), **given)
    assert "\n" not in str(raised.value)


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


def test_bytes_and_operations_leave_out_what_is_between():
    pair = PAIRS["strided"]
    whole = pair.problem()
    first, second = own_attributes(pair)
    alone = _native.Problem(pair.x.shape, pair.d.shape, True, **first)
    rest = _native.Problem(alone.output_shape, pair.w.shape, True, **second)
    assert whole.output_shape == rest.output_shape
    assert whole.operations == alone.operations + rest.operations
    assert whole.bytes == alone.bytes + rest.bytes - 2 * 4 * int(np.prod(alone.output_shape))
    assert whole.text == f"{rest.text} of=({alone.text})"


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
    # What each is estimated to take in two steps is more than it takes alone.
    estimates = _native.estimates(small, "cuda", compute_capability=capability)
    alone = _native.Problem((1, 576, 14, 14), (32, 576, 1, 1), True)
    assert estimates[chosen] > _native.estimates(alone, "cuda", compute_capability=capability)[chosen]


def test_without_memory_for_what_is_between_one_kernel_is_left():
    large, small = Pair((64, 32, 112, 112), 16).problem(), Pair((1, 576, 14, 14), 48).problem()
    how = {"compute_capability": 90, "lends_scratch": False}
    assert "ONNX Runtime 1.18" in _native.why_not(large, "tiled", "cuda", **how)
    assert _native.choose(large, "cuda", **how) == "separable"
    assert "ONNX Runtime 1.18" in _native.why_not(small, "auto", "cuda", **how)


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
def test_what_separable_does_not_compute_it_refuses(problem, words):
    assert words in _native.why_not(problem, "separable", "cuda", compute_capability=90)
    assert not _native.why_not(problem, "naive", "cuda", compute_capability=90)


def test_it_needs_compute_capability_8():
    why_not = _native.why_not(PAIRS["strided"].problem(), "separable", "cuda", compute_capability=75)
    assert "8.0" in why_not


def computed(pair: Pair, element: str, algorithm: str, z=None, **how) -> np.ndarray:
    """Return what the card computes into memory that held NaN."""
    of = arrays_of(pair, element, z)
    more = {} if z is None else {"residual_shape": z.shape}
    y = _native.DeviceArray(pair.problem(type=element, **more).output_shape, of["x"].dtype.name)
    y.poison()
    on_card = {name: _native.DeviceArray.from_numpy(each) for name, each in of.items() if each is not None}
    x, w, b = on_card.pop("x"), on_card.pop("w"), on_card.pop("b", None)
    _native.conv_device(x, w, b, y, algorithm=algorithm, **on_card, **how, **pair.attributes)
    return y.to_numpy()


def assert_is_right(y: np.ndarray, pair: Pair, element: str, z=None) -> None:
    _, second = own_attributes(pair)
    of = arrays_of(pair, element, z)
    u, w = between(pair, element), of["w"].astype(np.float64)
    b = None if of["b"] is None else of["b"].astype(np.float64)
    more = {} if z is None else {"residual": of["residual"].astype(np.float64)}
    reference = _native.conv(u, w, b, algorithm="reference", **more, **second)
    # What is between is rounded to the type of the data, or to TF32; no activation is steeper than 1.1.
    off = {"float32": TF32, "float16": 2.0**-11, "bfloat16": 2.0**-8}[element]
    pool = {name: each for name, each in second.items() if name.startswith("pool")}
    magnitude = _native.conv(np.abs(u) + 0.01, np.abs(w), algorithm="reference", **pool)
    magnitude = 1.1 * (
        magnitude + (0 if b is None else np.abs(b)[:, None, None]) + (0 if z is None else np.abs(z))
    )
    assert_near(y, reference, magnitude, pair.x.shape[1] + 12, element, TF32, between=off)
    if element != "float32":
        return
    assert np.linalg.norm(y - reference) <= 1e-3 * np.linalg.norm(reference)


@pytest.fixture
def ampere(cuda):
    """Skip where the card is older than compute capability 8.0."""
    reason = _native.why_not(PAIRS["strided"].problem(), "separable", "cuda")
    if reason:
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", PAIRS)
def test_every_tile_of_it_is_the_definition_and_repeats(name, element, ampere):
    pair = PAIRS[name]
    tiles = len(_native.alternatives(pair.problem(type=element), "separable", 20))
    assert tiles == (4 if "strided" in name else 6)
    shape = pair.problem().output_shape
    for z in (None, np.random.default_rng(1).standard_normal(shape)):
        for number in range(tiles):
            y = computed(pair, element, "separable", z, alternative=number)
            assert_is_right(y, pair, element, z)
            assert y.tobytes() == computed(pair, element, "separable", z, alternative=number).tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["auto", "naive", "tiled", "few_channels", "sliced_k"])
@pytest.mark.parametrize("name", PAIRS)
def test_other_algorithms_compute_it_in_two_steps(name, algorithm, ampere):
    for element in ("float32", "float16"):
        assert_is_right(computed(PAIRS[name], element, algorithm), PAIRS[name], element)


@pytest.mark.gpu
def test_pool_is_a_kernel_of_its_own(ampere):
    pair = Pair((2, 32, 16, 56), 16, pool="MaxPool", pool_kernel_shape=[2, 2], pool_strides=[2, 2])
    assert_is_right(computed(pair, "float32", "separable"), pair, "float32")


@pytest.mark.gpu
def test_infinities_and_nan_reach_the_outputs_that_see_them_and_no_others(ampere):
    pair = Pair((2, 32, 16, 56), 16)
    flat = pair.x.reshape(-1)
    flat[[0, flat.size // 2 + 17, flat.size - 1]] = np.inf, np.nan, -np.inf
    reference = _native.conv(between(pair, "float32"), pair.w.astype(np.float64), algorithm="reference")
    y = computed(pair, "float32", "separable")
    assert np.array_equal(np.isfinite(y), np.isfinite(reference)) and not np.isfinite(reference).all()
