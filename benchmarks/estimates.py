"""Sets the estimates of a CUDA algorithm against what takes how long: all that it chooses among, one by one.

    python benchmarks/estimates.py many_channels many-channels [--layers REGEX] [--batch B] [--most N]
        [--precision tf32] [--activation SiLU,HardSwish] [--rounds 5] [--prepared] [--json FILE]

With `--activation` each layer has each of these behind it, in place of what its suite has. For each layer of
the suite the algorithm's alternatives take turns, runs back to back by the card's own clock. A row has an
alternative's number, what it was estimated to take, what it took, and the ratio; the last rows say how far
off the estimates are, and how much longer what the algorithm takes was than the best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from convswap import _native
from convswap.errors import ConvswapError
from convswap.timing.measure import in_turn
from convswap.timing.single_node import single_node_data, single_node_weights
from convswap.timing.suites import SuiteLayer, suite_layers, usual_batch

RUNS = 20
WARM_UPS = 30


def main() -> int:
    """Print the rows; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("algorithm")
    parser.add_argument("suite")
    parser.add_argument("--layers", metavar="REGEX")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--activation", metavar="NAMES")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prepared", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if not _native.cuda_devices():
        parser.error("no NVIDIA card was found: alternatives are timed on a card")
    try:
        layers = suite_layers(options.suite, options.layers)
    except ConvswapError as error:
        parser.error(str(error))
    rows: list[dict[str, float | int | str]] = []
    for layer in layers:
        batch = options.batch or usual_batch(options.suite, layer, "cuda")
        named = [{"activation": name} for name in (options.activation or "").split(",") if name]
        of_layer: list[dict[str, float | int | str]] = []
        for following in named or [layer.following]:
            try:
                of_layer += measured(layer, batch, following, options)
            except ConvswapError as error:
                print(f"{layer.name}: {error}")
        for row in of_layer:
            ratio = row["ms"] / row["estimate_ms"]
            times = f"{row['estimate_ms']:8.4f} {row['ms']:8.4f} {ratio:6.2f}"
            print(f"{row['layer']:24} {row['alternative']:2} {times}")
        rows += of_layer
    if not rows:
        return 1
    ratios = [row["ms"] / row["estimate_ms"] for row in rows]
    rms = float(np.exp(np.sqrt(np.mean(np.square(np.log(ratios))))) - 1)
    print(
        f"took {min(ratios):.2f} to {max(ratios):.2f} times the estimate, {100 * rms:.0f} % off in the mean"
    )
    for name in dict.fromkeys(row["layer"] for row in rows):
        times = [row["ms"] for row in rows if row["layer"] == name]
        print(f"{name:24} takes {times[0] / min(times):.2f} times its best")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measured(
    layer: SuiteLayer, batch: int, following: Mapping[str, Any], options: argparse.Namespace
) -> list[dict[str, float | int | str]]:
    """Return a row for each alternative, in the order of their estimates."""
    attributes = {**layer.attributes, **following}
    kind = "float32" if options.precision in ("tf32", "ieee") else options.precision
    arithmetic = options.precision if kind == "float32" else "tf32"
    x, w = (
        _native.DeviceArray.from_numpy(each)
        for each in (
            single_node_data(layer, batch, options.precision),
            single_node_weights(layer, options.precision),
        )
    )
    problem = _native.Problem(x.shape, w.shape, False, kind, arithmetic, **attributes)
    y = _native.DeviceArray(problem.output_shape, kind)
    estimates = _native.alternatives(problem, options.algorithm, options.most)

    def run(number: int) -> float:
        return _native.conv_device(
            x,
            w,
            None,
            y,
            algorithm=options.algorithm,
            precision=arithmetic,
            runs=RUNS,
            alternative=number,
            prepared=options.prepared,
            **attributes,
        )

    for _ in range(WARM_UPS):
        run(0)
    times = in_turn([partial(run, number) for number in range(len(estimates))], options.rounds + 1)
    return [
        {
            "layer": " ".join([layer.name, *(str(each) for each in following.values())]),
            "batch": batch,
            "alternative": number,
            "estimate_ms": float(estimate or float("nan")),
            "ms": statistics.median(own[1:]),
        }
        for number, (estimate, own) in enumerate(zip(estimates, times, strict=True))
    ]


if __name__ == "__main__":
    sys.exit(main())
