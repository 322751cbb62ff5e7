"""Times depthwise convolutions and the 1x1 convolutions behind them, in one kernel and in two, on a card.

    python benchmarks/separable_pairs.py --json FILE [--batch 64,1]

The pairs are those of MobileNetV2, of PP-OCRv4's detector and of large images, these with batch 1 alone.
Each time is of a run among many back to back, by the card's clock, the median of rounds in which the sides
take turns: *two nodes*, the depthwise convolution and the other one each by what the rule chooses, and
every tiling of `separable`, the rule's first. Prints for each pair the two, how many times as fast one
kernel is, what share of the floor, and its relative L2 error against the two nodes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from convswap import _native
from convswap.errors import ConvswapError
from convswap.output.files import check_writable, write_json
from convswap.reference.metrics import relative_l2_error
from convswap.runtime.device import choose_device, environment
from convswap.timing.floor import floor_ms
from convswap.timing.measure import in_turn

RUNS, ROUNDS = 20, 5
# Pixels of a side from which on one image fills a card.
LARGE = 180
TYPES = {"tf32": np.float32, "float16": np.float16}
RELU6 = {"activation": "Clip", "activation_alpha": 0.0, "activation_beta": 6.0}


@dataclass(frozen=True)
class Pair:
    """Channels, filters behind, width and height of the input, and the depthwise convolution's stride."""

    channels: int
    filters: int
    size: int
    stride: int = 1

    def __str__(self) -> str:
        """Return "32>16 112", "96>24 112 s2"."""
        return f"{self.channels}>{self.filters} {self.size}" + (f" s{self.stride}" if self.stride > 1 else "")


PAIRS = (
    *(Pair(32, 16, 112), Pair(96, 24, 112, 2), Pair(144, 24, 56), Pair(144, 32, 56, 2), Pair(192, 32, 28)),
    *(Pair(16, 32, 368), Pair(32, 32, 184, 2), Pair(32, 16, 512), Pair(96, 24, 512, 2)),
)


def arrays_of(pair: Pair, batch: int, precision: str) -> dict[str, np.ndarray]:
    """Return seeded inputs of both convolutions."""
    random = np.random.default_rng(0)
    shapes = {
        "x": (batch, pair.channels, pair.size, pair.size),
        "d": (pair.channels, 1, 3, 3),
        "db": (pair.channels,),
        "w": (pair.filters, pair.channels, 1, 1),
        "b": (pair.filters,),
    }
    return {
        name: random.standard_normal(shape, np.float32).astype(TYPES[precision])
        for name, shape in shapes.items()
    }


def row_of(pair: Pair, batch: int, precision: str, card: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of a pair."""
    element_type = TYPES[precision].__name__
    on_card = {
        name: _native.DeviceArray.from_numpy(array)
        for name, array in arrays_of(pair, batch, precision).items()
    }
    x, d, db, w, b = (on_card[name] for name in ("x", "d", "db", "w", "b"))
    first = {"pads": [1] * 4, "strides": [pair.stride] * 2, "group": pair.channels, **RELU6}
    both = {f"depthwise_{name}": value for name, value in first.items() if name != "group"}
    depthwise = _native.Problem(x.shape, d.shape, True, element_type, **first)
    whole = _native.Problem(
        x.shape, w.shape, True, element_type, depthwise_shape=d.shape, has_depthwise_bias=True, **both
    )
    u = _native.DeviceArray(depthwise.output_shape, element_type)
    y, y_of_two = (_native.DeviceArray(whole.output_shape, element_type) for _ in range(2))

    def two_nodes() -> float:
        return _native.conv_device(x, d, db, u, runs=RUNS, **first) + _native.conv_device(
            u, w, b, y_of_two, runs=RUNS
        )

    def one(number: int) -> float:
        given = {"depthwise": d, "depthwise_bias": db, "algorithm": "separable", "alternative": number}
        return _native.conv_device(x, w, b, y, runs=RUNS, **given, **both)

    row: dict[str, Any] = {"pair": str(pair), "batch": batch, "precision": precision}
    row["chosen"] = _native.choose(whole, "cuda")
    row["why_not"] = _native.why_not(whole, "separable", "cuda")
    tilings = [] if row["why_not"] else _native.alternatives(whole, "separable", 20)
    sides = [two_nodes, *(partial(one, number) for number in range(len(tilings)))]
    medians = [statistics.median(times) for times in in_turn(sides, ROUNDS)]
    row["two_nodes_ms"], row["separable_ms"] = medians[0], medians[1:]
    row["estimates_ms"] = tilings
    row["floor_ms"] = floor_ms(whole, card, precision)
    if tilings:
        one(0)
        row["relative_l2"] = float(
            relative_l2_error(*(each.to_numpy().astype(np.float64) for each in (y, y_of_two)))
        )
    return row


def told(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    begin = f"{row['pair']:14} {row['batch']:5} {row['precision']:8} {row['two_nodes_ms']:9.4f}"
    if row["why_not"]:
        return f"{begin}  {row['why_not']}"
    own, best = row["separable_ms"][0], min(row["separable_ms"])
    gain = row["two_nodes_ms"] / own
    share = f"{row['floor_ms'] / own:5.0%}" if row["floor_ms"] else f"{'-':>5}"
    rest = f"{share} {row['relative_l2']:.0e} {row['chosen']}"
    return f"{begin} {own:9.4f} {best:9.4f} {gain:5.2f}x {rest}"


def main() -> int:
    """Print a row for each pair and write them all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument("--batch", default="64,1")
    parser.add_argument("--precision", default="tf32,float16")
    options = parser.parse_args()
    precisions = options.precision.split(",")
    if unknown := [each for each in precisions if each not in TYPES]:
        parser.error(f"--precision {','.join(unknown)}: expected some of {', '.join(TYPES)}")
    try:
        batches = [int(each) for each in options.batch.split(",")]
    except ValueError:
        parser.error(f"--batch {options.batch}: expected whole numbers, such as 64,1")
    if min(batches) < 1:
        parser.error(f"--batch {options.batch}: expected numbers above 0")
    try:
        check_writable(options.json)
        device = choose_device("cuda")
    except ConvswapError as error:
        parser.error(str(error))
    (card, *_) = _native.cuda_devices()
    heads = f"{'pair':14} {'batch':>5} {'type':8} {'two nodes':>9} {'separable':>9} {'best':>9}"
    print(f"{heads} {'gain':>6} floor error")
    rows = []
    for precision in precisions:
        for batch in batches:
            for pair in PAIRS:
                if batch > 1 and pair.size >= LARGE:
                    continue
                rows.append(row_of(pair, batch, precision, card))
                print(told(rows[-1]), flush=True)
    write_json(Path(options.json), {"environment": environment(device), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
