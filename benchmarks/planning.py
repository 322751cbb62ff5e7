"""How long the planner takes for a shape that it has not seen: every algorithm asked, its tilings compared.

    python benchmarks/planning.py [--compute-capability 90]

It needs no card: it plans for one of that compute capability. Prints the milliseconds of a processor for each
layer of the course at several batches and precisions, and of some layers of large networks: the median of 20.
"""

from __future__ import annotations

import argparse
import statistics
import time

from convswap import _native
from convswap.timing.suites import SUITES, SuiteLayer

BATCHES = (1, 64, 10_000)
PRECISIONS = {"tf32": ("float32", "tf32"), "ieee": ("float32", "ieee"), "float16": ("float16", "tf32")}
# Of networks with other filters: ResNet-50's and MobileNetV2's first layers, and a depthwise one.
OTHERS = (
    SuiteLayer("resnet50-conv1", 3, 64, 7, 224, stride=2, padding=3),
    SuiteLayer("mobilenet-v2-conv1", 3, 32, 3, 224, stride=2, padding=1),
    SuiteLayer("mobilenet-v2-depthwise", 96, 96, 3, 112, stride=2, padding=1, group=96),
)
RUNS = 20


def milliseconds(layer: SuiteLayer, batch: int, precision: str, capability: int) -> float:
    """Return how long the choice of an algorithm and its tiling takes, the median of some."""
    element_type, of_float32 = PRECISIONS[precision]
    problem = _native.Problem(
        (batch, layer.channels, layer.size, layer.size),
        (layer.filters, layer.channels // layer.group, layer.kernel, layer.kernel),
        False,
        element_type,
        of_float32,
        strides=[layer.stride] * 2,
        pads=[layer.padding] * 4,
        group=layer.group,
    )
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        _native.choose(problem, "cuda", compute_capability=capability)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    """Print a row for each layer, a column for each precision and batch."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compute-capability", type=int, default=90, help="of the card that is planned for")
    capability = parser.parse_args().compute_capability
    if capability < 75:
        parser.error(f"--compute-capability {capability}: expected one from 75 on, 90 for 9.0")
    columns = [(precision, batch) for precision in PRECISIONS for batch in BATCHES]
    print(f"{'layer':24}" + "".join(f"{precision:>8} {batch:>6}" for precision, batch in columns))
    worst = 0.0
    for layer in (*SUITES["course"], *OTHERS):
        row = [milliseconds(layer, batch, precision, capability) for precision, batch in columns]
        worst = max(worst, *row)
        print(f"{layer.name:24}" + "".join(f"{value:15.2f}" for value in row), flush=True)
    print(f"the longest: {worst:.2f} ms")


if __name__ == "__main__":
    main()
