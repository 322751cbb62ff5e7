"""Check that every algorithm computes the float64 convolution, within the rounding of its terms and type.

The convolution includes its epilogue and a depthwise convolution in front of it. Half of the problems may
have tensors in NHWC. Hypothesis draws problems, each checked with every algorithm that supports it, and
shrinks failures. As a program it checks a range of seeds, each with EXAMPLES_PER_SEED problems, and names the
seeds that failed. A long run can be split into ranges of seeds and resumed:

    python tools/conv_property.py --device cuda --seeds 0:100 --jobs 8
"""

from __future__ import annotations

import argparse
import concurrent.futures
import math
import sys
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import helpers_of_tests  # noqa: F401
import ml_dtypes
import numpy as np
from conv_cases import ConvCase
from convswap import _native
from course_layers import course_layers
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

EXAMPLES_PER_SEED = 200
# Every PAIRS_EVERY-th seed draws only depthwise convolutions in front of others.
PAIRS_EVERY = 8
# Multiplications per problem: enough for every code path of the algorithms, few enough for thousands of runs.
MAX_OPERATIONS = 3_000_000


@dataclass(frozen=True)
class Rounding:
    """Unit roundoff of a type and of its accumulators, and the smallest positive number of the type."""

    numpy: type
    unit_roundoff: float
    accumulator_roundoff: float
    smallest: float


ROUNDINGS = {
    "float32": Rounding(np.float32, 2.0**-24, 2.0**-24, 2.0**-149),
    "float64": Rounding(np.float64, 2.0**-53, 2.0**-53, 2.0**-1074),
    "float16": Rounding(np.float16, 2.0**-11, 2.0**-24, 2.0**-24),
    "bfloat16": Rounding(ml_dtypes.bfloat16, 2.0**-8, 2.0**-24, 2.0**-133),
}
# TF32 keeps 10 mantissa bits of an operand. Tensor cores truncate when they add, with up to four times the
# error of rounding.
TF32_OPERAND, TENSOR_CORE = 2.0**-11, 2.0**-22
WINOGRAD = 21 * 2.0**-24
ON_TENSOR_CORES = (
    "few_channels",
    "toeplitz",
    "implicit_gemm",
    "many_channels",
    "channels_last",
    "channels_last_mma",
    "pointwise",
    "sliced_k",
    "row_windows",
    "separable",
    "ladder_14_tensor_cores",
    "ladder_15_automatic",
    "ladder_16_fused",
)
COURSE_LAYERS = course_layers()
# Activations and parameters, none steeper than MAX_SLOPE. An activation adds up to ACTIVATION_ROUNDINGS
# roundings.
ACTIVATIONS = {
    "None": {},
    "Relu": {},
    "LeakyRelu": {"activation_alpha": 0.25},
    "Clip": {"activation_alpha": -0.75, "activation_beta": 1.5},
    "Tanh": {},
    "Sigmoid": {},
    "HardSigmoid": {"activation_alpha": 0.25, "activation_beta": 0.375},
    "HardSwish": {},
    "SiLU": {},
    "Gelu": {},
    "GeluTanh": {},
    "Elu": {"activation_alpha": 1.25},
}
MAX_SLOPE, ACTIVATION_ROUNDINGS = 1.5, 12
# Every SPREAD-th draw spreads x and w over these numbers of binades, up and down. With at most 80 in total,
# no product leaves the normal numbers of float32 and no sum overflows.
SPREAD = 8
BINADES = ((40, 0), (0, 40), (40, 40), (80, 0), (0, 80))
LAYOUTS = ("input_layout", "output_layout", "residual_layout")
# Larger than any number of the normal distribution; spread data are larger.
BEYOND_NORMAL = 2.0**8


@dataclass(frozen=True)
class Front:
    """A depthwise convolution in front: the shapes of its input and weights, and its attributes."""

    x_shape: tuple[int, ...]
    d_shape: tuple[int, ...]
    has_bias: bool
    attributes: dict[str, Any]  # of a separate Conv

    @property
    def fused_attributes(self) -> dict[str, Any]:
        """The attributes of the depthwise convolution in FusedConv."""
        return {f"depthwise_{name}": value for name, value in self.attributes.items()}

    @property
    def conv_attributes(self) -> dict[str, Any]:
        """The attributes of a separate Conv."""
        return {"group": self.d_shape[0], **self.attributes}


@dataclass(frozen=True)
class Draw:
    """A conv problem, the type and seed of its data, the requested precision, and its epilogue.

    With a depthwise convolution in front, the input of `case` is the output of that convolution.
    """

    case: ConvCase
    type: str
    precision: str
    data_seed: int
    epilogue: dict[str, Any] = field(default_factory=dict)  # attributes of FusedConv that Conv lacks
    has_residual: bool = False
    front: Front | None = None
    layouts: dict[str, str] = field(default_factory=dict)  # attributes of LayoutConv; all shapes are NCHW

    @property
    def binades(self) -> tuple[int, int]:
        """Number of binades, up and down, over which x and w are spread; 0 for float16, which has too few."""
        number, remainder = divmod(self.data_seed, SPREAD)
        is_spread = remainder == SPREAD - 1 and self.type != "float16"
        return BINADES[number % len(BINADES)] if is_spread else (0, 0)

    @property
    def is_depthwise(self) -> bool:
        """Whether each filter has one input channel, which no other filter has."""
        filters, channels = self.case.w_shape[:2]
        return channels == 1 and filters == self.case.attributes.get("group", 1)

    @property
    def residual_shape(self) -> tuple[int, ...] | None:
        """The shape of the residual, equal to the convolution's output; None without a residual."""
        case = self.case
        if not self.has_residual:
            return None
        return _native.Problem(case.x_shape, case.w_shape, **case.attributes).output_shape

    @property
    def problem(self) -> _native.Problem:
        """The conv problem."""
        case, front, x_shape = self.case, self.front, self.case.x_shape
        residual_shape = self.residual_shape
        if residual_shape is not None and self.is_nhwc("residual_layout"):
            residual_shape = nhwc_shape(residual_shape)
        options = {"residual_shape": residual_shape, **case.attributes, **self.epilogue, **self.layouts}
        if front is not None:
            x_shape = front.x_shape
            options |= {
                "depthwise_shape": front.d_shape,
                "has_depthwise_bias": front.has_bias,
                **front.fused_attributes,
            }
        if self.is_nhwc("input_layout"):
            x_shape = nhwc_shape(x_shape)
        return _native.Problem(x_shape, case.w_shape, case.has_bias, self.type, self.precision, **options)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of a call, without arrays."""
        return {
            **self.case.attributes,
            **self.epilogue,
            **(self.front.fused_attributes if self.front else {}),
            **self.layouts,
        }

    def is_nhwc(self, name: str) -> bool:
        """Whether the attribute `name`, one of LAYOUTS, is NHWC."""
        return self.layouts.get(name) == "NHWC"

    def arrays(self) -> list[np.ndarray | None]:
        """Return x, w, b, the residual, the depthwise weights and their bias; None for absent arrays."""
        random = np.random.default_rng(self.data_seed)
        bias_shape = self.case.w_shape[:1] if self.case.has_bias else None
        shapes = [self.case.x_shape, self.case.w_shape, bias_shape, self.residual_shape, None, None]
        if self.front is not None:
            shapes[0], shapes[4] = self.front.x_shape, self.front.d_shape
            shapes[5] = self.front.d_shape[:1] if self.front.has_bias else None
        values = [None if shape is None else random.normal(size=shape) for shape in shapes]
        for index, limit in enumerate(self.binades):
            if limit > 0:
                values[index] = np.ldexp(
                    values[index], random.integers(-limit, limit, shapes[index], endpoint=True)
                )
        kind = ROUNDINGS[self.type].numpy
        return [None if array is None else array.astype(kind) for array in values]


def nhwc_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape (n, c, spatial...) as (n, spatial..., c)."""
    return (shape[0], *shape[2:], shape[1])


def to_nhwc(array: np.ndarray) -> np.ndarray:
    """Return an array (n, c, spatial...) as a contiguous (n, spatial..., c)."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def with_layouts(draw: Draw) -> Draw:
    """Return the draw with layouts that follow from its data seed; half of all draws stay NCHW."""
    # Hypothesis prefers small seeds, whose digits are seldom large.
    number = zlib.crc32(draw.data_seed.to_bytes(4, "little")) % (2 << len(LAYOUTS))
    if number < 1 << len(LAYOUTS):
        return draw
    are_nhwc = {name: bool(number >> index & 1) for index, name in enumerate(LAYOUTS)}
    return replace(draw, layouts={name: "NHWC" if is_nhwc else "NCHW" for name, is_nhwc in are_nhwc.items()})


def mostly(usual: st.SearchStrategy[Any], seldom: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw from `seldom` in one of eight draws, else from `usual`."""
    return st.integers(0, 7).flatmap(lambda choice: seldom if choice == 7 else usual)


@st.composite
def pools(draw: st.DrawFn, height: int, width: int) -> dict[str, Any]:
    """A pool that fits an output of this size."""
    if draw(st.booleans()) and min(height, width) >= 2:  # this pool has separate code
        kernel, strides, pads = [2, 2], [2, 2], [0, 0, 0, 0]
    else:
        kernel = [draw(st.integers(1, min(4, size))) for size in (height, width)]
        strides = [draw(st.integers(1, 4)) for _ in range(2)]
        pads = [draw(st.integers(0, min(2, size - 1))) for size in (*kernel, *kernel)]
    kind = draw(st.sampled_from(["MaxPool", "MaxPool", "AveragePool"]))
    return {
        "pool": kind,
        "pool_kernel_shape": kernel,
        "pool_strides": strides,
        "pool_pads": pads,
        "pool_ceil_mode": draw(st.integers(0, 1)),
        **({"pool_count_include_pad": draw(st.integers(0, 1))} if kind == "AveragePool" else {}),
    }


@st.composite
def epilogues(draw: st.DrawFn, output: tuple[int, ...]) -> dict[str, Any]:
    """Epilogue attributes for a convolution whose output has this spatial shape."""
    activation = draw(st.sampled_from(sorted(ACTIVATIONS)))
    pool = {}
    if len(output) == 2 and min(output) > 0 and draw(st.booleans()):
        pool = draw(pools(*output))
    return {"activation": activation, **ACTIVATIONS[activation], **pool}


@st.composite
def draws(draw: st.DrawFn) -> Draw:
    """A problem with at most about MAX_OPERATIONS multiplications; half of them have an epilogue."""
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    group = draw(mostly(st.just(1), st.integers(1, 40)))
    channels = draw(mostly(st.integers(1, 16), st.integers(0, 300)))
    filters = draw(mostly(st.integers(1, 24), st.integers(1, 200) | st.sampled_from([0, 32, 64, 96])))
    # Depthwise or small groups, for `depthwise`, `sliding_rows` and code paths of `direct`.
    has_small_groups = draw(st.integers(0, 3)) == 3
    if has_small_groups:
        group = draw(st.integers(1, 70))
        channels, filters = (
            draw(mostly(st.just(1), st.integers(1, 9))),
            draw(mostly(st.just(1), st.integers(1, 5))),
        )
    kernel = [draw(mostly(st.integers(1, (11, 7, 4)[rank - 1]), st.integers(1, 19))) for _ in range(rank)]
    # 1x1 filters without padding, for `pointwise`, are hardly ever drawn by chance.
    is_pointwise = not has_small_groups and draw(st.integers(0, 9)) == 9
    if is_pointwise:
        kernel = [1] * rank
    elif has_small_groups and draw(st.integers(0, 2)) == 2:
        kernel = [draw(st.sampled_from([3, 5, 7]))] * rank
    strides = [draw(mostly(st.integers(1, 3), st.integers(1, 14))) for _ in range(rank)]
    dilations = [draw(mostly(st.just(1), st.integers(1, 5))) for _ in range(rank)]
    auto_pad = draw(st.sampled_from(["NOTSET"] * 5 + ["SAME_UPPER", "SAME_LOWER", "VALID"]))
    pads = [0] * (2 * rank)
    if auto_pad == "NOTSET" and not is_pointwise:
        pads = [draw(mostly(st.integers(0, 2), st.integers(0, 20))) for _ in range(2 * rank)]
    if has_small_groups and rank == 2 and draw(st.booleans()):
        # Problems of `sliding_rows`, with any padding after the image.
        channels, dilations, auto_pad = 1, [1, 1], "NOTSET"
        kernel, strides = [draw(st.sampled_from([3, 5, 7]))] * 2, [draw(st.integers(1, 2))] * 2
        pads = [kernel[0] // 2] * 2 + [draw(mostly(st.just(kernel[0] // 2), st.integers(0, 9)))] * 2
    batch = draw(mostly(st.integers(1, 5), st.integers(6, 200) | st.sampled_from([0, 7])))
    per_output = max(1, channels * math.prod(kernel)) * max(1, batch) * group * max(1, filters)
    sizes = []
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        # An axis may have no pixels if the padding before it spans the filter.
        min_pixels = 0 if pads[axis] >= reach else 1
        min_size = max(
            min_pixels, reach - (0 if auto_pad.startswith("SAME") else pads[axis] + pads[axis + rank])
        )
        size_budget = max(1, MAX_OPERATIONS // max(1, per_output))
        max_size = min_size + min(90 if rank < 3 else 12, int(size_budget ** (1 / (rank - axis))))
        sizes.append(draw(st.integers(min_size, max_size)))
        per_output *= max(1, sizes[-1] // strides[axis])
    attributes = {"group": group, "strides": strides, "dilations": dilations, "auto_pad": auto_pad}
    if auto_pad == "NOTSET":
        attributes["pads"] = pads
    case = ConvCase(
        (batch, group * channels, *sizes),
        (group * filters, channels, *kernel),
        draw(st.booleans()),
        attributes,
    )
    kind = draw(st.sampled_from(["float32"] * 5 + ["float16", "bfloat16", "float64"]))
    epilogue, has_residual = {}, False
    if draw(st.booleans()):
        output = _native.Problem(case.x_shape, case.w_shape, **attributes).output_shape
        epilogue, has_residual = draw(epilogues(output[2:])), draw(st.sampled_from([False, False, True]))
    precision, data_seed = draw(st.sampled_from(["tf32", "ieee"])), draw(st.integers(0, 2**32 - 1))
    drawn = Draw(case, kind, precision, data_seed, epilogue, has_residual)
    # With many groups, many channels and a large filter, no input size is small enough.
    assume(drawn.problem.operations <= 50 * MAX_OPERATIONS)
    return drawn


@st.composite
def rung_draws(draw: st.DrawFn) -> Draw:
    """A course layer, which is all that some rungs support, or one like it; seldom with an epilogue."""
    if draw(st.booleans()):
        layer = draw(st.sampled_from(COURSE_LAYERS))
        case = ConvCase(layer.input_shape(draw(st.integers(1, 2))), layer.weight_shape, draw(st.booleans()))
    else:
        channels = draw(mostly(st.integers(1, 3), st.integers(1, 12)))
        filters = draw(mostly(st.sampled_from([4, 6, 12, 16, 24, 50]), st.integers(1, 70)))
        square = draw(st.sampled_from([5, 7]))
        kernel = [draw(mostly(st.just(square), st.integers(1, 9))) for _ in range(2)]
        size = [taps + draw(st.integers(0, 23)) for taps in kernel]
        x_shape = (draw(st.integers(1, 2)), channels, *size)
        case = ConvCase(x_shape, (filters, channels, *kernel), draw(st.booleans()))
    output = _native.Problem(case.x_shape, case.w_shape).output_shape
    epilogue = draw(mostly(st.just({}), epilogues(output[2:])))
    precision = draw(st.sampled_from(["tf32", "ieee"]))
    return Draw(case, "float32", precision, draw(st.integers(0, 2**32 - 1)), epilogue)


@st.composite
def pair_draws(draw: st.DrawFn) -> Draw:
    """A depthwise convolution in front of a draw; half of them are problems of `separable`."""
    if draw(st.booleans()):
        channels, filters, stride = (draw(st.integers(1, limit)) for limit in (70, 32, 2))
        size = [draw(st.integers(2, 40)), 4 * draw(st.integers(1, 17))]
        attributes = {
            "strides": [stride] * 2,
            "pads": [1, 1, *(draw(mostly(st.just(1), st.integers(0, 3))) for _ in range(2))],
        }
        kernel, batch = [3, 3], draw(st.integers(1, 3))
        shape = _native.Problem(
            (batch, channels, *size), (channels, 1, 3, 3), group=channels, **attributes
        ).output_shape
        case = ConvCase(shape, (filters, channels, 1, 1), draw(st.booleans()))
        epilogue = draw(mostly(st.just({}), epilogues(shape[2:])))
        kind = draw(st.sampled_from(["float32", "float32", "float16", "bfloat16"]))
        conv = Draw(case, kind, "tf32", draw(st.integers(0, 2**32 - 1)), epilogue, draw(st.booleans()))
    else:
        conv = draw(draws())
        assume(min(conv.case.x_shape[1:]) > 0)
        kernel, strides, dilations, begins, ends, size = [], [], [], [], [], []
        for extent in conv.case.x_shape[2:]:
            kernel.append(draw(st.integers(1, 5)))
            strides.append(draw(mostly(st.just(1), st.integers(2, 3))))
            dilations.append(draw(mostly(st.just(1), st.integers(2, 3))))
            reach = (kernel[-1] - 1) * dilations[-1] + 1
            inside = (extent - 1) * strides[-1] + reach + draw(st.integers(0, strides[-1] - 1))
            begins.append(draw(st.integers(0, min(2, inside - 1))))
            ends.append(draw(st.integers(0, min(2, inside - 1 - begins[-1]))))
            size.append(inside - begins[-1] - ends[-1])
        attributes = {"strides": strides, "dilations": dilations, "pads": [*begins, *ends]}
    activation = draw(st.sampled_from(sorted(ACTIVATIONS)))
    attributes |= {"activation": activation, **ACTIVATIONS[activation]}
    batch, channels = conv.case.x_shape[:2]
    front = Front((batch, channels, *size), (channels, 1, *kernel), draw(st.booleans()), attributes)
    return replace(conv, front=front)


def depthwise_output(
    front: Front, draw: Draw, arrays: list[np.ndarray | None], device: str
) -> list[np.ndarray]:
    """Return the output of the depthwise convolution of x, d and its bias, and its error bound."""
    u = _native.conv(*arrays, algorithm="reference", threads=1, **front.conv_attributes)
    without_activation = {
        name: value for name, value in front.conv_attributes.items() if not name.startswith("activation")
    }
    magnitudes = [None if array is None else np.abs(array) for array in arrays]
    magnitude = _native.conv(*magnitudes, algorithm="reference", threads=1, **without_activation)
    rounding = ROUNDINGS[draw.type]
    operand, unit = 0.0, rounding.accumulator_roundoff
    problem = _native.Problem(
        front.x_shape, front.d_shape, front.has_bias, draw.type, draw.precision, **front.conv_attributes
    )
    # As a separate step, the planner chooses the algorithm of the depthwise convolution.
    if device == "cuda" and _native.choose(problem, "cuda") in ON_TENSOR_CORES:
        rounds = draw.type == "float32" and draw.precision == "tf32"
        operand, unit = (TF32_OPERAND if rounds else 0.0), max(unit, TENSOR_CORE)
    terms = math.prod(front.d_shape[1:]) + 2 + ACTIVATION_ROUNDINGS
    error = 1.01 * MAX_SLOPE * (2 * operand + terms * unit) * magnitude
    return [
        u,
        error
        + ACTIVATION_ROUNDINGS * rounding.accumulator_roundoff
        + rounding.unit_roundoff * np.abs(u)
        + rounding.smallest,
    ]


def check(draw: Draw, device: str) -> int:
    """Check every algorithm of `device` that supports the draw; return how many results were compared.

    An algorithm that refuses everything would never be wrong, so some must compute: see `must_compute`.
    """
    arrays = draw.arrays()
    *inputs, residual, d, db = [None if array is None else array.astype(np.float64) for array in arrays]
    front_error = None
    if draw.front is not None:
        inputs[0], front_error = depthwise_output(draw.front, draw, [inputs[0], d, db], device)
    options = {"algorithm": "reference", "threads": 1, **draw.case.attributes}
    reference = _native.conv(*inputs, residual=residual, **options, **draw.epilogue)
    *magnitudes, residual_magnitude = [
        None if array is None else np.abs(array) for array in (*inputs, residual)
    ]
    # The sum of the terms' magnitudes. For a pool it is the largest sum of the window, because the error of
    # an average is at most the largest error of its terms.
    window = {key: value for key, value in draw.epilogue.items() if key.startswith("pool")}
    window.pop("pool_count_include_pad", None)
    if window:
        window["pool"] = "MaxPool"
    propagated_error = 0.0
    if front_error is not None:
        propagated_error = _native.conv(front_error, magnitudes[1], **options, **window)
        magnitudes[0] = magnitudes[0] + front_error
    magnitude = _native.conv(*magnitudes, residual=residual_magnitude, **options, **window)
    slope, extra_roundings = (MAX_SLOPE, ACTIVATION_ROUNDINGS) if draw.epilogue else (1.0, 0)
    largest = max(size.max(initial=0.0) for size in magnitudes[:2])
    compared, computed_by = 0, set()
    for name, y in results(draw, arrays, device):
        computed_by.add(name.split()[0])
        rounding = ROUNDINGS[draw.type]
        operand, unit, scale = 0.0, rounding.accumulator_roundoff, magnitude
        if name in ON_TENSOR_CORES:
            # tf32 rounds float32 operands to 11 bits. Otherwise operands have 23 bits, which the bound of the
            # tensor cores' truncated additions covers.
            rounds = draw.type == "float32" and draw.precision == "tf32"
            if name == "sliced_k" and draw.is_depthwise:
                rounds = False  # sliced_k splits depthwise operands in any precision
            operand, unit = (TF32_OPERAND if rounds else 0.0), max(unit, TENSOR_CORE)
        elif name == "ladder_13_winograd":
            # The error of a large number in a tile reaches all outputs of the tile, and the transformations
            # multiply it by up to 21. They mix numbers that no output multiplies, so the error has no bound
            # if a number is far larger than all others.
            if largest > BEYOND_NORMAL:
                continue
            unit = WINOGRAD
            scale = np.broadcast_to(magnitude.max(axis=(2, 3), keepdims=True), reference.shape)
        bound = 1.01 * slope * (2 * operand + (draw.case.terms + 2 + extra_roundings) * unit) * scale
        bound += 1.01 * slope * propagated_error
        # An activation may be about 1 at small arguments.
        bound += extra_roundings * rounding.accumulator_roundoff
        bound += rounding.unit_roundoff * np.abs(reference) + rounding.smallest
        wrong = np.argwhere(~(np.abs(y.astype(np.float64) - reference) <= bound))  # NaN is wrong too
        assert y.shape == reference.shape
        if wrong.size:
            at = tuple(wrong[0].tolist())
            comparison = f"{y[at]}, expected {reference[at]} within {bound[at]:.3g}"
            raise AssertionError(
                f"{name} on {draw}: {len(wrong)} of {y.size} wrong, first {at}: {comparison}"
            )
        compared += 1
    missing = must_compute(draw, device) - computed_by
    assert not missing, f"{', '.join(sorted(missing))} did not compute {draw}"
    return compared


def must_compute(draw: Draw, device: str) -> set[str]:
    """Return the algorithms that must compute the draw on the device.

    `naive` and `reference` support every problem, and `direct` every problem except float64.
    """
    if device == "cuda":
        return {"naive"}
    return {"reference"} if draw.type == "float64" else {"reference", "direct"}


def results(draw: Draw, arrays: list[np.ndarray | None], device: str):
    """Yield the name and output of every algorithm of the device that supports the draw."""
    problem, attributes = draw.problem, draw.attributes
    for index, name in ((0, "input_layout"), (3, "residual_layout")):
        if arrays[index] is not None and draw.is_nhwc(name):
            arrays = [*arrays[:index], to_nhwc(arrays[index]), *arrays[index + 1 :]]

    def to_nchw(y: np.ndarray) -> np.ndarray:
        return np.moveaxis(y, -1, 1) if draw.is_nhwc("output_layout") else y

    names = [entry.name for entry in _native.catalog() if entry.device == device]
    supporting = [name for name in names if not _native.why_not(problem, name, device)]
    if device == "cpu":
        for name in supporting:
            # An instruction set can be forced only in NCHW and without a depthwise convolution in front.
            forces_set = name == "direct" and draw.front is None and "NHWC" not in draw.layouts.values()
            sets = _native.direct_instruction_sets() if forces_set else [""]
            for instruction_set in sets:
                options = {"algorithm": name, "instruction_set": instruction_set, "threads": 1}
                extra_arrays = dict(zip(("residual", "depthwise", "depthwise_bias"), arrays[3:], strict=True))
                y = _native.conv(*arrays[:3], **extra_arrays, **options, **attributes)
                yield f"{name} {instruction_set}", to_nchw(y)
        return
    *on_card, residual, d, db = [
        None if array is None else _native.DeviceArray.from_numpy(array) for array in arrays
    ]
    y = _native.DeviceArray(problem.output_shape, draw.type)
    for name in supporting:
        y.poison()
        options = {"algorithm": name, "precision": draw.precision, "residual": residual}
        _native.conv_device(*on_card, y, depthwise=d, depthwise_bias=db, **options, **attributes)
        yield name, to_nchw(y.to_numpy())


def for_each_draw(
    function: Callable[[Any], None],
    strategy: st.SearchStrategy[Any],
    number: int,
    examples: int,
    shrinks: bool = False,
) -> None:
    """Call the function with examples drawn with the seed `number`; shrink a failure if `shrinks`."""
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    options = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}

    @seed(number)
    @settings(max_examples=examples, phases=phases, **options)
    @given(strategy)
    def holds(draw: Any) -> None:
        function(draw)

    holds()


def check_seed(number: int, device: str, examples: int = EXAMPLES_PER_SEED, shrinks: bool = True) -> int:
    """Check the problems of one seed; return how many results were compared."""
    compared = 0

    def property_holds(draw: Draw) -> None:
        nonlocal compared
        compared += check(with_layouts(draw), device)

    strategy = pair_draws() if number % PAIRS_EVERY == PAIRS_EVERY - 1 else mostly(draws(), rung_draws())
    for_each_draw(property_holds, strategy, number, examples, shrinks)
    return compared


def _attempt(check_seed: Callable[[int, str], int], number: int, device: str) -> tuple[int, int, str]:
    try:
        return number, check_seed(number, device), ""
    except BaseException:
        return number, 0, traceback.format_exc(limit=-1)


def run_seeds(check_seed: Callable[[int, str], int]) -> int:
    """Check the seeds of the command line in several processes; return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Check the problems drawn with a range of seeds.")
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--seeds", default="0:10", metavar="FIRST:END")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    first, end = (int(part) for part in options.seeds.split(":"))
    failures = compared = 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        attempts = [pool.submit(_attempt, check_seed, number, options.device) for number in range(first, end)]
        for done, attempt in enumerate(concurrent.futures.as_completed(attempts), start=1):
            number, count, error = attempt.result()
            compared += count
            if error:
                failures += 1
                print(f"seed {number} failed:\n{error}", flush=True)
            if done % 25 == 0:
                print(f"{done} of {end - first} seeds, {compared:,} results compared", flush=True)
    print(f"{options.device}: {end - first:,} seeds, {compared:,} results compared, {failures} seeds failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(run_seeds(check_seed))
