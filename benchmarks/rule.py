"""Sets what the planner's rule takes against every algorithm that could be the best, on a suite's layers.

    python benchmarks/rule.py many-channels one-d three-d [--layers REGEX] [--batch 1,8,64,256]
        [--precision tf32,float16,bfloat16] [--within 3] [--rounds 5] [--json FILE]

Algorithms whose estimate is within some times the cheapest one's take turns, many runs back to back by the
card's own clock, with weights that are prepared once. A line for each problem where the rule takes more
than MISSED times as long as the best; the last lines say how many there were, and the worst.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from convswap import _native
from convswap.errors import ConvswapError
from convswap.timing.floor import floor_ms
from convswap.timing.measure import in_turn
from convswap.timing.single_node import single_node_data, single_node_weights
from convswap.timing.suites import SuiteLayer, suite_layers

# How much longer than the best the rule's choice may take.
MISSED = 1.05
# Milliseconds that one measurement should take, and how many runs it may have for that.
MEASURED_MS, MOST_RUNS = 4.0, 20
# Bytes of the largest tensor that is sent to the card; problems above it are left out, and counted.
LARGEST = 6e9


def main() -> int:
    """Print where the rule misses; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--layers", metavar="REGEX")
    parser.add_argument("--batch", default="1,8,64,256")
    parser.add_argument("--precision", default="tf32,float16,bfloat16")
    parser.add_argument("--within", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if not _native.cuda_devices():
        parser.error("no NVIDIA card was found: algorithms are timed on a card")
    try:
        layers = [layer for suite in options.suites for layer in suite_layers(suite, options.layers)]
        batches = [int(each) for each in options.batch.split(",")]
    except (ConvswapError, ValueError) as error:
        parser.error(str(error))
    precisions = options.precision.split(",")
    compile_all(layers, batches, precisions, options.within)
    (card, *_) = _native.cuda_devices()
    rows, left_out = [], 0
    for layer in layers:
        for precision in precisions:
            for batch in batches:
                if size_of(layer, batch, precision) > LARGEST:
                    left_out += 1
                    continue
                row = measured(layer, batch, precision, options, card)
                rows.append(row)
                if row["rule_over_best"] > MISSED:
                    print(told(row), flush=True)
    if not rows:
        parser.error("no problem was small enough to be sent to the card")
    missed = [row for row in rows if row["rule_over_best"] > MISSED]
    worst = max(rows, key=lambda row: row["rule_over_best"])
    print(f"{card['name']}: {len(rows)} problems, {left_out} too large; rule above {MISSED} in {len(missed)}")
    print(f"worst: {told(worst)}")
    if options.json:
        Path(options.json).write_text(json.dumps({"card": card["name"], "rows": rows}, indent=1) + "\n")
    return 0


def problem_of(layer: SuiteLayer, batch: int, precision: str) -> _native.Problem:
    """Return the layer as a problem of the planner."""
    kind, arithmetic = types_of(precision)
    how = {**layer.attributes, **layer.following}
    return _native.Problem(layer.input_shape(batch), layer.weight_shape, False, kind, arithmetic, **how)


def types_of(precision: str) -> tuple[str, str]:
    """Return the element type, and the precision of float32 tensors, of a layer's precision."""
    return ("float32", precision) if precision in ("tf32", "ieee") else (precision, "tf32")


def size_of(layer: SuiteLayer, batch: int, precision: str) -> float:
    """Return the bytes of the larger of input and output."""
    elements = max(
        math.prod(layer.input_shape(batch)), math.prod(problem_of(layer, batch, precision).output_shape)
    )
    return elements * (4 if types_of(precision)[0] == "float32" else 2)


def candidates(problem: _native.Problem, within: float) -> dict[str, float | None]:
    """Return the estimates, in ms, of the algorithms that could be the best, the rule's choice first."""
    taken = _native.choose(problem, "cuda")
    estimates: dict[str, float | None] = {}
    for entry in _native.catalog():
        if entry.device != "cuda" or entry.by_name_alone or _native.why_not(problem, entry.name, "cuda"):
            continue
        (estimate, *_) = _native.alternatives(problem, entry.name, 1)
        if estimate is not None:
            estimates[entry.name] = estimate
    cheapest = min((each for each in estimates.values() if each), default=0.0)
    near = {name: each for name, each in estimates.items() if each is not None and each <= within * cheapest}
    return {taken: estimates.get(taken)} | near


def compile_all(layers: list[SuiteLayer], batches: list[int], precisions: list[str], within: float) -> None:
    """Have the kernels of all problems compiled, several at once; what is measured waits for its own."""
    names = {
        kernel
        for layer in layers
        for batch in batches
        for precision in precisions
        for problem in [problem_of(layer, batch, precision)]
        for algorithm in candidates(problem, within)
        for kernel in _native.kernels_of(problem, "cuda", algorithm)
    }
    (card, *_) = _native.cuda_devices()
    print(f"{card['name']}: {len(names)} kernels are compiled where the store has none", flush=True)
    _native.compile_ahead(sorted(names), card["compute_capability"])


def measured(
    layer: SuiteLayer, batch: int, precision: str, options: argparse.Namespace, card: dict[str, Any]
) -> dict[str, Any]:
    """Return the row of a problem: what each candidate took, in milliseconds."""
    problem = problem_of(layer, batch, precision)
    kind, arithmetic = types_of(precision)
    # Random numbers of some images, again and again: drawing all of them would take longer than the rest.
    some = single_node_data(layer, min(batch, 4), precision)
    data = np.tile(some, (-(-batch // len(some)),) + (1,) * (some.ndim - 1))[:batch]
    x, w = (
        _native.DeviceArray.from_numpy(np.ascontiguousarray(each))
        for each in (data, single_node_weights(layer, precision))
    )
    y = _native.DeviceArray(problem.output_shape, kind)

    def run(algorithm: str, runs: int) -> float:
        return _native.conv_device(
            x,
            w,
            None,
            y,
            algorithm=algorithm,
            precision=arithmetic,
            runs=runs,
            prepared=True,
            **layer.attributes,
            **layer.following,
        )

    estimates = candidates(problem, options.within)
    runs_of = {}
    for name in estimates:
        run(name, 1)
        runs_of[name] = max(1, min(MOST_RUNS, round(MEASURED_MS / run(name, 2))))
    times = in_turn([partial(run, name, runs) for name, runs in runs_of.items()], options.rounds + 1)
    medians = {name: statistics.median(own[1:]) for name, own in zip(runs_of, times, strict=True)}
    rule = next(iter(medians))
    return {
        "layer": layer.name,
        "batch": batch,
        "precision": precision,
        "rule": rule,
        "ms": medians,
        "estimates_ms": estimates,
        "rule_over_best": medians[rule] / min(medians.values()),
        "floor_ms": floor_ms(problem, card, precision),
    }


def told(row: dict[str, Any]) -> str:
    """Return the line of a row."""
    times = ", ".join(
        f"{name} {ms:.4f} (estimated {row['estimates_ms'][name] or float('nan'):.4f})"
        for name, ms in row["ms"].items()
    )
    return f"{row['layer']:24} {row['batch']:4} {row['precision']:8} {row['rule_over_best']:5.2f}: {times}"


if __name__ == "__main__":
    sys.exit(main())
