"""Measure drawn problems on a card, and judge the planner's estimates by them.

    python benchmarks/fit.py collect DATA [--problems 0:600] [--seconds N]    # on a card; can be resumed
    python benchmarks/fit.py fit DATA [--families tiled,toeplitz]             # anywhere
    python benchmarks/fit.py report DATA [--held-out]                         # anywhere

`collect` draws problems from realistic ranges, each from its number. Numbers from NHWC_FROM on have channels
last in x, y or both; `fit` needs some of them (`--problems 4000:4200`) for channels_last,
channels_last_depthwise, channels_last_mma and layout, and for channels_last some from SMALL_FROM on, of few
small images. Numbers from PLAIN_FROM on are Convs alone, on which the default provider is timed too. Numbers
from SUITES_FROM on are layers of the suites of `convswap bench`. On each problem it times every algorithm
that computes the problem, or those of `--families`: the tiling that the algorithm would choose, and others,
at most TILINGS in all. The file DATA has a line of JSON for the card, and one for each problem and algorithm.

`fit` fits the coefficients of the cost formulas (custom_op/cuda/costs) to the times by least squares, and
writes the table of the card. The library has to be built again to use it. Every third drawn problem and the
Convs alone are held out: nothing is fitted to them.

`report` prints how far the planner's choice is from the fastest algorithm, and how far the estimates of each
algorithm are from the times. The estimates are those of the library at hand.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from convswap import _native
from convswap.errors import ConvswapError
from convswap.output.files import write_json
from convswap.planning.fitting import EstimatedTimes, fitted_factors, residuals_of, root_mean_square
from convswap.runtime.device import choose_device
from convswap.runtime.onnxruntime_errors import NoKernelError
from convswap.runtime.sessions import DEFAULT, BoundRun, make_session, on_device
from convswap.timing import sampler
from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.sampler import Sample, StoppingRule, measure
from convswap.timing.single_node import spread_values
from convswap.timing.suites import SUITES, usual_batch
from convswap.timing.timed_conv import PRECISIONS, TimedConv
from onnx import helper, numpy_helper
from results import card_and_driver, checked_out

RULE = StoppingRule(samples=5, seconds=20, burst_ms=3, max_burst=20, drop_slower=10, drop_first=30)
PROBLEMS = range(600)
NHWC_FROM, SMALL_FROM, PLAIN_FROM, SUITES_FROM = 4_000, 4_800, 5_000, 10_000
DEFAULT_PROVIDER = "default"
TABLES = Path(__file__).resolve().parents[1] / "custom_op" / "cuda" / "costs"
CONV_ATTRIBUTES = "strides", "dilations", "pads", "group"
# The tables' cards have this compute capability; estimates do not need the card.
CAPABILITY = 90
# The weight of the logarithm of a coefficient's factor in a fit, beside that of a relative error.
RIDGE = 0.01
TILINGS = 6
ALL = 1 << 30
# Problems whose kernels are compiled together, while those before are timed.
CHUNK = 16
# Of the larger tensor in bytes, and of multiplications and additions.
MAX_BYTES, MAX_OPERATIONS = 1e9, 4e11
# The planner's choice should take at most so many times as long as the fastest algorithm.
NEAR, FAR = 1.05, 1.25
# Algorithms that take so many times as long are left out of the written times.
MUCH = 3
# And at most so many times as long as the default provider's Conv.
SLOWER = 1.03

Row = dict[str, Any]


# Problems


@dataclass(frozen=True, kw_only=True)
class Drawn(TimedConv):
    """A convolution with its number."""

    number: int

    @property
    def is_held_out(self) -> bool:
        """True if no estimate may be fitted to the problem."""
        return self.is_plain or (self.number < PLAIN_FROM and self.number % 3 == 2)

    @property
    def is_plain(self) -> bool:
        """True for a Conv alone, which the default provider is timed on as well."""
        return PLAIN_FROM <= self.number < SUITES_FROM


@functools.cache
def suite_problems() -> list[Drawn]:
    """Return the layers of the suites as problems, those of one image last.

    The layers have their usual batch in TF32 and float16, and batch 1 in one of both; so have those of one
    image.
    """
    found: dict[str, Drawn] = {}
    suites = ("course", "many-channels", "one-d", "three-d", "depthwise-grouped", "small-groups")
    for suite in (*suites, "first-layers", "fused", "one-image"):
        for layer in SUITES[suite]:
            of_one = ("tf32", "float16")[len(found) % 2]
            usual = usual_batch(suite, layer, "cuda")
            kinds = {(1, of_one)} | ({(usual, "tf32"), (usual, "float16")} if usual > 1 else set())
            for batch, precision in sorted(kinds):
                attributes = {**layer.attributes, **layer.epilogue}
                number = SUITES_FROM + len(found)
                shapes = layer.input_shape(batch), layer.weight_shape
                draw = Drawn(*shapes, precision, attributes=attributes, number=number)
                found.setdefault(draw.problem().text, draw)
    return list(found.values())


def problem_numbered(number: int) -> Drawn:
    """Return the drawn problem or the suite's layer of a number."""
    if number >= SUITES_FROM:
        return suite_problems()[number - SUITES_FROM]
    draw = drawn_problem(number)
    if not draw.is_plain:
        return draw if number < NHWC_FROM else with_channels_last(draw)
    attributes = {name: draw.attributes[name] for name in CONV_ATTRIBUTES if name in draw.attributes}
    return replace(draw, has_residual=False, depthwise_shape=None, attributes=attributes)


def with_channels_last(draw: Drawn) -> Drawn:
    """Return the problem with x, y or both in NHWC, the residual like y, and 16 bits as a rule."""
    random = Random(draw.number)
    layouts = ("NHWC", "NHWC"), ("NHWC", "NCHW"), ("NCHW", "NHWC")
    x, y = random.choices(layouts, (6, 2, 2))[0]
    n, c, *size = draw.x_shape
    attributes = {**draw.attributes, "input_layout": x, "output_layout": y}
    if draw.has_residual:
        attributes["residual_layout"] = y
    x_shape = (n, *size, c) if x == "NHWC" else draw.x_shape
    precision = random.choice(("float16", "bfloat16", draw.precision))
    return replace(draw, x_shape=x_shape, precision=precision, attributes=attributes)


def drawn_problem(number: int) -> Drawn:
    """Return the first of a number's seeded draws that is neither empty nor too large."""
    random = Random(number)
    draw_one = _draw_small if SMALL_FROM <= number < PLAIN_FROM else _draw
    while True:
        draw = draw_one(number, random)
        try:
            problem = draw.problem()
        except ConvswapError:
            continue
        size = 4 if draw.tensor_type == "float32" else 2
        elements = max(math.prod(draw.x_shape), math.prod(problem.output_shape))
        if 0 < elements * size <= MAX_BYTES and 0 < problem.operations <= MAX_OPERATIONS:
            return draw


def _draw(number: int, random: Random) -> Drawn:
    rank = random.choices((1, 2, 3), (12, 80, 8))[0]
    kinds = {"dense": 48, "pointwise": 16, "depthwise": 15, "grouped": 8, "first": 8, "separable": 5}
    kind = random.choices(tuple(kinds), tuple(kinds.values()))[0]
    if kind == "separable":
        return _draw_separable(number, random)
    taps = (
        1
        if kind == "pointwise"
        else random.choices((2, 3, 4, 5, 7, 9, 11, 15), (2, 62, 2, 16, 10, 3, 3, 2))[0]
    )
    stride = random.choices((1, 2, 3, 4), (76, 20, 2, 2))[0]
    dilation = random.choices((1, 2, 4), (90, 7, 3))[0] if taps > 1 else 1
    reach = dilation * (taps - 1) + 1
    sizes = {1: (32, 32_000), 2: (7, 640), 3: (8, 96)}[rank]
    size = [max(reach, _log_uniform(random, *sizes))] * rank
    if rank > 1 and random.random() < 0.3:
        size[-1] = max(reach, round(size[-1] * random.uniform(0.5, 2)))
    channels = random.choice((1, 2, 3, 4)) if kind == "first" else _channels(random, 2048)
    outputs = (
        _channels(random, 2048)
        if random.random() < 0.4
        else max(1, int(channels * random.choice((0.25, 0.5, 1, 1, 2, 4))))
    )
    if kind == "first":
        outputs = _channels(random, 128)
    group = 1
    if kind == "depthwise":
        group = outputs = channels
    elif kind == "grouped":
        group = random.choice([each for each in range(2, 65) if channels % each == 0] or [1])
        outputs = max(1, outputs // group) * group
    padding = 0 if random.random() < 0.15 else dilation * (taps - 1) // 2
    attributes: Row = {
        "strides": [stride] * rank,
        "dilations": [dilation] * rank,
        "pads": [padding] * 2 * rank,
        "group": group,
    }
    after = random.choices(
        ("nothing", "Relu", "SiLU", "HardSwish", "residual", "pool"), (55, 18, 10, 5, 7, 5)
    )[0]
    if after in ("Relu", "SiLU", "HardSwish"):
        attributes["activation"] = after
    elif after == "residual":
        attributes["activation"] = "Relu"
    elif after == "pool" and rank == 2:
        attributes |= {"activation": "Relu", "pool": "MaxPool"}
        attributes |= {"pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
    return Drawn(
        (random.choice((1, 1, 2, 4, 8, 16, 32, 64, 128, 256)), channels, *size),
        (outputs, channels // group, *[taps] * rank),
        random.choices(PRECISIONS, (42, 18, 30, 10))[0],
        number=number,
        has_bias=random.random() < 0.5,
        has_residual=after == "residual",
        attributes=attributes,
    )


def _draw_small(number: int, random: Random) -> Drawn:
    """Return a convolution of few small images, as late layers of networks are for one image."""
    taps, stride = random.choice((1, 1, 3, 3, 5)), random.choice((1, 1, 1, 2))
    size = max(taps, _log_uniform(random, 5, 40))
    channels, outputs = (round(_log_uniform(random, 32, 2048) / 8) * 8 for _ in range(2))
    has_residual = random.random() < 0.3
    attributes: Row = {"strides": [stride] * 2, "pads": [taps // 2] * 4}
    if has_residual or random.random() < 0.5:
        attributes["activation"] = "Relu" if has_residual else random.choice(("Relu", "SiLU"))
    return Drawn(
        (random.choice((1, 1, 1, 2, 4, 8)), channels, size, size),
        (outputs, channels, taps, taps),
        random.choices(PRECISIONS, (42, 18, 30, 10))[0],
        number=number,
        has_bias=True,
        has_residual=has_residual,
        attributes=attributes,
    )


def _draw_separable(number: int, random: Random) -> Drawn:
    """Return a 1x1 convolution with a depthwise 3x3 convolution and a ReLU in front."""
    channels, size, stride = _channels(random, 512), _log_uniform(random, 7, 512), random.choice((1, 1, 2))
    return Drawn(
        (random.choice((1, 1, 2, 4, 8, 16, 32, 64)), channels, size, size),
        (_log_uniform(random, 4, 16), channels, 1, 1),
        random.choice(("tf32", "float16", "bfloat16")),
        number=number,
        has_bias=random.random() < 0.5,
        depthwise_shape=(channels, 1, 3, 3),
        attributes={
            "depthwise_pads": [1] * 4,
            "depthwise_strides": [stride] * 2,
            "depthwise_activation": "Relu",
        },
    )


def _log_uniform(random: Random, least: int, most: int) -> int:
    return round(math.exp(random.uniform(math.log(least), math.log(most))))


def _channels(random: Random, most: int) -> int:
    """Return a number of channels, as a rule a multiple of eight."""
    count = _log_uniform(random, 4, most)
    return max(8, round(count / 8) * 8) if random.random() < 0.75 else count


# Collecting


def collect(
    file: Path,
    numbers: Sequence[int],
    seconds: float,
    commit: str | None,
    most_tilings: int = TILINGS,
    families: Sequence[str] = (),
) -> None:
    """Append the times of the problems that `file` lacks, until `seconds` are over.

    Of all families if `families` is empty.
    """
    end = time.monotonic() + seconds
    rows = read(file) if file.exists() else []
    if not rows:
        append(file, [header_of_this_card(commit)])
    done = {row["problem"] for row in rows if "problem" in row}
    draws = [problem_numbered(number) for number in numbers if number not in done]
    chunks = [draws[first : first + CHUNK] for first in range(0, len(draws), CHUNK)]
    sides = [{draw.number: sides_of(draw, most_tilings, families) for draw in chunk} for chunk in chunks]
    compile_all(sides[:1])
    for number, chunk in enumerate(chunks):
        compile_all(sides[number + 1 : number + 2])
        for draw in chunk:
            if time.monotonic() > end:
                print(f"time is over; problems left: {len(draws) - number * CHUNK - chunk.index(draw)}")
                return
            if not sides[number][draw.number]:
                continue
            try:
                append(file, timed(draw, sides[number][draw.number]))
            except RuntimeError as error:
                print(f"problem {draw.number} is left out: {error}")
        print(f"{min(len(draws), (number + 1) * CHUNK)} of {len(draws)} problems", flush=True)


def header_of_this_card(commit: str | None) -> Row:
    """Return the first line of a file of times."""
    card, driver = card_and_driver()
    names = "compute_capability", "memory_bandwidth", "clock"
    facts = {name: _native.cuda_devices()[0].get(name) for name in names}
    return {"card": card, "driver": driver, "commit": commit or checked_out(), **facts}


@dataclass(frozen=True)
class Side:
    """A tiling of an algorithm, by its number among the algorithm's tilings."""

    algorithm: str
    index: int
    tiling: str
    estimate_ms: float | None
    kernels: tuple[str, ...]


def sides_of(draw: Drawn, most_tilings: int, families: Sequence[str] = ()) -> list[Side]:
    """Return what is timed of a problem: the first tilings of each algorithm, and a few others."""
    problem = draw.problem()
    sides = []
    for entry in _native.catalog():
        if entry.device != "cuda" or entry.by_name_alone or (families and entry.name not in families):
            continue
        if _native.why_not(problem, entry.name, "cuda"):
            continue
        tilings = _native.alternatives(problem, entry.name, ALL)
        if tilings[0]["milliseconds"] is None:
            continue
        for index in spread(len(tilings), most_tilings, draw.number):
            offer = tilings[index]
            kernels = tuple(offer["kernels"])
            sides.append(Side(entry.name, index, offer["tiling"], offer["milliseconds"], kernels))
    return sides


def spread(count: int, most: int, seed: int) -> list[int]:
    """Return at most `most` of `count` numbers: the first two, and others, more often small ones."""
    if count <= most or most < 2:
        return list(range(min(count, most)))
    random = Random(seed)
    chosen = {0, 1}
    while len(chosen) < most:
        chosen.add(min(count - 1, int(count * random.random() ** 2)))
    return sorted(chosen)


def compile_all(sides: Iterable[Mapping[int, Sequence[Side]]]) -> None:
    """Have the kernels compiled in the background."""
    kernels = {
        kernel for by_draw in sides for own in by_draw.values() for side in own for kernel in side.kernels
    }
    _native.compile_ahead(sorted(kernels), _native.cuda_devices()[0]["compute_capability"])


def timed(draw: Drawn, sides: Sequence[Side]) -> list[Row]:
    """Return the rows of a problem, one for each algorithm."""
    tensors = draw.tensors()
    samples = {side: draw.sample(tensors, side.algorithm, side.index) for side in sides}
    if draw.is_plain and (default := default_sample(draw)) is not None:
        samples[Side(DEFAULT_PROVIDER, 0, "", None, ())] = default
    times = measure(samples, RULE)
    chosen = _native.choose(draw.problem(), "cuda")
    rows: dict[str, Row] = {}
    for side, each in times.items():
        new = {"problem": draw.number, "algorithm": side.algorithm, "is_chosen": side.algorithm == chosen}
        row = rows.setdefault(side.algorithm, {**new, "tilings": []})
        row["tilings"].append({"tiling": side.tiling, "estimate_ms": side.estimate_ms, "ms": each.median})
    return list(rows.values())


def default_sample(draw: Drawn) -> Sample | None:
    """Return the sample of the default provider's Conv; None if it has none for the type."""
    inputs = {"x": draw.x_shape, "w": draw.w_shape, "b": draw.w_shape[:1]}
    if not draw.has_bias:
        del inputs["b"]
    arrays = {name: spread_values(shape, draw.onnx_type) for name, shape in inputs.items()}
    x = helper.make_tensor_value_info("x", draw.onnx_type, draw.x_shape)
    y = helper.make_tensor_value_info("y", draw.onnx_type, draw.problem().output_shape)
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name != "x"]
    node = helper.make_node("Conv", list(inputs), ["y"], **draw.attributes)
    graph = helper.make_graph([node], "conv", [x], [y], weights)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22)])
    device, options = choose_device("cuda"), dict(gpu_timer().provider_options)
    if draw.precision == "ieee":
        options["use_tf32"] = "0"
    try:
        session = make_session(model, DEFAULT.with_options(options), device, only_device=True)
    except NoKernelError:
        return None
    run = BoundRun(session, on_device({"x": arrays["x"]}, device), device)
    return sampler.sample_of(run, gpu_timer())


@functools.cache
def gpu_timer() -> GpuTimer:
    """Return the timer of the first card."""
    return GpuTimer()


# The report


def report(file: Path, *, held_out: bool, json_file: str | None = None) -> None:
    """Print how near the planner's choice is to the fastest algorithm, and estimates to the times.

    An algorithm's time is that of the tiling that it chooses. `json_file` gets the times by problem.
    """
    header, *rows = read(file)
    table = table_of(header)
    if held_out:
        rows = [row for row in rows if problem_numbered(row["problem"]).is_held_out]
    if not rows:
        raise ConvswapError(f"{file} has no times; `python benchmarks/fit.py collect {file}` takes them")
    by_problem: dict[int, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row["problem"], []).append(row)
    default = {
        row["problem"]: row["tilings"][0]["ms"] for row in rows if row["algorithm"] == DEFAULT_PROVIDER
    }
    by_problem = {
        number: [row for row in own if row["algorithm"] != DEFAULT_PROVIDER]
        for number, own in by_problem.items()
    }
    for own in by_problem.values():
        estimate_again(own, table)
    # Without the chosen algorithm's times there is no choice to judge.
    ratios = {
        number: ratio_of(own) for number, own in by_problem.items() if any(row["is_chosen"] for row in own)
    }
    if json_file is not None:
        write_json(json_file, [times_by_algorithm(by_problem[number]) for number in ratios])
    for number in sorted(ratios, key=lambda number: -ratios[number]):
        if ratios[number] > NEAR:
            print(problem_line(problem_numbered(number), ratios[number], by_problem[number]))
    count = len(ratios)
    for limit in (NEAR, FAR):
        within = sum(ratio <= limit for ratio in ratios.values())
        share = f"{within} of {count}, {within / count:.1%}"
        print(f"choice within {limit - 1:.0%} of the fastest algorithm: {share}")
    print(f"loss in the geometric mean: {statistics.geometric_mean(ratios.values()) - 1:.2%}")
    if default:
        compare_with_default(default, by_problem)
    rows = [row for own in by_problem.values() for row in own]
    head = f"{'algorithm':16}{'problems':>9}{'tilings':>9}{'rms':>7}{'bias':>7}"
    print(f"{head}{'first tiling over the fastest':>31}")
    for name in sorted({row["algorithm"] for row in rows}):
        print(algorithm_line(name, [row["tilings"] for row in rows if row["algorithm"] == name]))


def compare_with_default(default: Mapping[int, float], by_problem: Mapping[int, Sequence[Row]]) -> None:
    """Print the problems on which the default provider is faster than the planner's choice."""
    speedups = {}
    for number, ms in default.items():
        times = {row["algorithm"]: row["tilings"][0]["ms"] for row in by_problem[number]}
        (chosen,) = (row["algorithm"] for row in by_problem[number] if row["is_chosen"])
        speedups[number] = ms / times[chosen]
        if speedups[number] < 1 / SLOWER:
            fastest = min(times, key=lambda name: times[name])
            print(
                f"{number:4} default {ms:.4f}, {chosen} {times[chosen]:.4f}, fastest of ours {fastest} "
                f"{times[fastest]:.4f}: {problem_numbered(number).problem().text}"
            )
    slower = sum(speedup < 1 / SLOWER for speedup in speedups.values())
    mean = statistics.geometric_mean(speedups.values())
    print(f"default provider: {len(default)} problems; speedup {mean:.2f} in the geometric mean; ours is")
    print(f"slower by more than {SLOWER - 1:.0%} on {slower}")


def estimate_again(rows: Sequence[Row], table: np.ndarray) -> None:
    """Give the rows of a problem the estimates of the library at hand, and mark its choice.

    A tiling that the library no longer has keeps its estimate.
    """
    problem = problem_numbered(rows[0]["problem"]).problem()
    chosen = _native.choose(problem, "cuda", compute_capability=CAPABILITY)
    for row in rows:
        row["is_chosen"] = row["algorithm"] == chosen
        for tiling, ms in zip(row["tilings"], times_of(row).estimates(table), strict=True):
            tiling["estimate_ms"] = ms if ms is not None else tiling["estimate_ms"]
        row["tilings"].sort(key=lambda tiling: tiling["estimate_ms"])


def times_by_algorithm(rows: Sequence[Row]) -> Row:
    """Return a problem's number and the milliseconds of each algorithm, but for the slowest."""
    times = {row["algorithm"]: float(f"{row['tilings'][0]['ms']:.4g}") for row in rows}
    least = min(times.values())
    return {"problem": rows[0]["problem"], "ms": {k: ms for k, ms in times.items() if ms < MUCH * least}}


def ratio_of(rows: Sequence[Row]) -> float:
    """Return the time of the planner's choice over that of the fastest algorithm."""
    (chosen,) = (row["tilings"][0]["ms"] for row in rows if row["is_chosen"])
    return float(chosen / min(row["tilings"][0]["ms"] for row in rows))


def problem_line(draw: Drawn, ratio: float, rows: Sequence[Row]) -> str:
    """Return a problem with its ratio, and the times and estimates of the fastest algorithms."""
    by_time = sorted(rows, key=lambda row: row["tilings"][0]["ms"])
    shown = [row for row in by_time if row in by_time[:3] or row["is_chosen"]]
    times = ", ".join(
        f"{'*' if row['is_chosen'] else ''}{row['algorithm']} {row['tilings'][0]['ms']:.4f} "
        f"(estimated {row['tilings'][0]['estimate_ms']:.4f})"
        for row in shown
    )
    return f"{draw.number:4} {ratio:5.2f} {draw.problem().text}: {times}"


def algorithm_line(name: str, tilings: Sequence[Sequence[Row]]) -> str:
    """Return how far estimates are from times, and the first tiling's time over the fastest's."""
    logs = [math.log(each["ms"] / each["estimate_ms"]) for own in tilings for each in own]
    rms = math.exp(math.sqrt(statistics.fmean(log * log for log in logs))) - 1
    bias = math.exp(statistics.fmean(logs)) - 1
    lost = statistics.geometric_mean(own[0]["ms"] / min(each["ms"] for each in own) for own in tilings) - 1
    return f"{name:16}{len(tilings):9}{len(logs):9}{rms:7.0%}{bias:+7.0%}{lost:31.1%}"


# The fit


def fit(file: Path, families: Sequence[str], kept: Sequence[str] = (), *, passes: int = 2) -> None:
    """Fit the coefficients of families to the times in `file`, and write the card's table.

    Those named `kept` stay as they are.

    Raises:
        ConvswapError: a family or a coefficient is unknown, or a family has no times.
    """
    header, *rows = read(file)
    owners = [family for family, *_ in _native.coefficients()]
    names = [name for _, name, *_ in _native.coefficients()]
    own_names = [name for owner, name in zip(owners, names, strict=True) if owner in (families or owners)]
    for name in kept:
        if name not in own_names:
            raise ConvswapError(f"{name}: expected a coefficient, such as {own_names[0]}")
    free = [place for place, name in enumerate(names) if name not in kept]
    for family in families:
        if family not in owners:
            raise ConvswapError(f"{family}: expected one of {', '.join(dict.fromkeys(owners))}")
    own = [times_of(row) for row in rows if not problem_numbered(row["problem"]).is_held_out]
    values = table_of(header)
    for _ in range(passes):
        for family in families or dict.fromkeys(owners):
            # The coefficients of no algorithm are shared by all.
            times = [each for each in own if each.algorithm == family] or own
            values = fitted(times, values, [place for place in free if owners[place] == family])
            errors = residuals_of(times, values)
            print(f"{family:16}{len(errors):6} times{root_mean_square(errors):8.1%} rms", flush=True)
    write_table(header, values)


def fitted(times: Sequence[EstimatedTimes], values: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """Return the values with those at some places fitted to the times."""

    def moved(factors: np.ndarray) -> np.ndarray:
        new = values.copy()
        new[places] *= factors
        return new

    factors = fitted_factors(lambda factors: residuals_of(times, moved(factors)), len(places), RIDGE)
    return moved(factors)


def times_of(row: Row) -> EstimatedTimes:
    """Return the times of a row of `collect`."""
    return EstimatedTimes(
        problem_numbered(row["problem"]).problem(),
        row["algorithm"],
        [each["tiling"] for each in row["tilings"]],
        [each["ms"] for each in row["tilings"]],
        compute_capability=CAPABILITY,
    )


def table_of(header: Row) -> np.ndarray:
    """Return the coefficients of the card, or of the nearest card if it has no table yet."""
    return np.array(_native.fitted_costs(compute_capability=header["compute_capability"])[1])


def write_table(header: Row, values: np.ndarray) -> None:
    """Write the table of a card."""
    by_family: dict[str, list[str]] = {}
    for (family, name, unit, _), value in zip(_native.coefficients(), values, strict=True):
        line = f"            .{name} = {value:.4g},"
        by_family.setdefault(family, []).append(f"{line}  // {unit}" if unit else line)
    costs = []
    for family, own in by_family.items():
        costs += [f"        .{family} = {{", *own, "        },"]
    name = header["card"].removeprefix("NVIDIA ").split()[0]
    text = TABLE.format(name=name, date=date.today(), costs="\n".join(costs), **header)
    (TABLES / f"{name.lower()}.cc").write_text(text, encoding="utf-8")


TABLE = """\
// Written by `python benchmarks/fit.py fit`. Names and units: coefficients.def.
// clang-format off

#include "cuda/costs/cost_table.h"

namespace convswap {{

extern const FittedCosts k{name}{{
    .card = "{card}",
    .date = "{date}",
    .commit = "{commit}",
    .driver = "{driver}",
    .compute_capability = {compute_capability},
    .memory_bandwidth = {memory_bandwidth:.4g},
    .clock = {clock:.4g},
    .costs = {{
{costs}
    }}}};

}}  // namespace convswap
"""


# Files


def read(file: Path) -> list[Row]:
    """Return the lines of a file.

    Raises:
        ConvswapError: a line is none of `collect`; an interrupted call may leave part of one.
    """
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or row.keys().isdisjoint({"commit", "tilings"}):
            raise ConvswapError(f"{file}, line {number}: expected a line that `collect` wrote; remove it")
        rows.append(row)
    return rows


def append(file: Path, rows: Sequence[Row]) -> None:
    """Add lines to a file."""
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def main() -> int:
    """Collect or report; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("collect", help="time the problems that DATA lacks, on a card")
    add.add_argument("data", type=Path, metavar="DATA")
    add.add_argument("--problems", type=number_range, default=PROBLEMS, metavar="FIRST:END")
    add.add_argument("--seconds", type=float, default=math.inf, metavar="N", help="stop after so long")
    add.add_argument("--held-out", action="store_true", help="only the problems that nothing is fitted to")
    add.add_argument("--tilings", type=int, default=TILINGS, metavar="N", help="at most, of an algorithm")
    add.add_argument("--commit", metavar="HASH", help="of the sources; default: that of this checkout")
    add.add_argument("--families", type=names, default=[], metavar="NAME,...", help="default: all")
    add = actions.add_parser("fit", help="fit the card's table of coefficients to the times")
    add.add_argument("data", type=Path, metavar="DATA")
    add.add_argument("--families", type=names, default=[], metavar="NAME,...", help="default: all")
    add.add_argument("--keep", type=names, default=[], metavar="NAME,...", help="coefficients that stay")
    add = actions.add_parser("report", help="judge choices and estimates")
    add.add_argument("data", type=Path, metavar="DATA")
    add.add_argument("--held-out", action="store_true", help="only the problems that nothing is fitted to")
    add.add_argument("--json", metavar="FILE", help="write the time of each algorithm")
    options = parser.parse_args()
    try:
        if options.action == "fit":
            fit(options.data, options.families, options.keep)
        elif options.action == "report":
            report(options.data, held_out=options.held_out, json_file=options.json)
        elif not _native.cuda_devices():
            parser.error("no NVIDIA card was found: algorithms are timed on a card")
        else:
            numbers = [
                number
                for number in options.problems
                if not options.held_out or problem_numbered(number).is_held_out
            ]
            limits = options.seconds, options.commit, options.tilings, options.families
            collect(options.data, numbers, *limits)
    except (ConvswapError, OSError) as error:
        print(f"fit.py: {error}", file=sys.stderr)
        return 2
    return 0


def names(text: str) -> list[str]:
    """Return the names of "tiled,toeplitz", for argparse."""
    return text.split(",")


def number_range(text: str) -> range:
    """Return the range of "0:600", for argparse."""
    first, _, end = text.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIRST:END, such as 0:600")
    return range(int(first), int(end))


if __name__ == "__main__":
    sys.exit(main())
