"""Compare the speed of two builds of convswap on one card, layer by layer.

    python -m pip install --no-build-isolation --no-deps --target before CHECKOUT      # of each build
    python benchmarks/compare_builds.py before after [--batch 1,64] [--precision tf32,float16] [--json FILE]

Each build runs in a separate process. Samples of the builds alternate, so that other changes of the card
affect both. Both processes restart a few times (--starts), because the addresses of their memory affect
times. A time is the median of the rounds, of runs back to back by the card's clock. The ratio is the mean of
the second build over the mean of the first, over all starts. *noise* is the relative spread of the first
build's starts: a ratio closer to 1 means nothing. The layers are those of the course suite, with random data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# A sample is a burst of runs of this length.
BURST_MS, MAX_BURST = 5.0, 2_000
LAYER_KEYS = ("name", "channels", "filters", "kernel", "size")
PRECISIONS = {"tf32": ("float32", "tf32"), "ieee": ("float32", "ieee"), "float16": ("float16", "tf32")}


class Build:
    """A process with a loaded build."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(folder.resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: object) -> dict:
        """Return the answer to a request of `serve`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a build's process ended with status {self._process.wait()} on {request}")
        return json.loads(answer)

    def end(self) -> None:
        """End the process, which frees its memory."""
        self._process.communicate()


def serve(folder: str) -> None:
    """Answer requests on standard input, one a line: prepare a layer, or run it a number of times."""
    sys.path.insert(0, folder)
    import numpy as np
    from convswap import _native

    prepared: dict = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "layer" in request:
            layer, (element_type, precision) = request["layer"], PRECISIONS[request["precision"]]
            prepared.clear()
            random = np.random.default_rng(1)
            x_shape = (request["batch"], layer["channels"], layer["size"], layer["size"])
            w_shape = (layer["filters"], layer["channels"], layer["kernel"], layer["kernel"])
            extent = layer["size"] - layer["kernel"] + 1
            y_shape = (request["batch"], layer["filters"], extent, extent)
            # One random image, repeated for the batch.
            image = random.standard_normal((1, *x_shape[1:]), np.float32).astype(element_type)
            x = np.broadcast_to(image, x_shape)
            w = random.standard_normal(w_shape, np.float32).astype(element_type)
            problem = _native.Problem(x_shape, w_shape, False, element_type, precision)
            prepared.update(
                x=_native.DeviceArray.from_numpy(np.ascontiguousarray(x)),
                w=_native.DeviceArray.from_numpy(w),
                y=_native.DeviceArray(y_shape, element_type),
                precision=precision,
                algorithm=request["algorithm"],
            )
            answer = {"algorithm": _native.choose(problem, "cuda", request["algorithm"])}
        else:
            milliseconds = _native.conv_device(
                prepared["x"],
                prepared["w"],
                None,
                prepared["y"],
                algorithm=prepared["algorithm"],
                precision=prepared["precision"],
                runs=request["runs"],
            )
            answer = {"milliseconds": milliseconds}
        print(json.dumps(answer), flush=True)


def times_of(
    builds: list[Build], layer: dict, precision: str, batch: int, algorithm: str, rounds: int
) -> dict:
    """Return the median milliseconds and the algorithm of each build for a layer."""
    from convswap.timing.sampler import StoppingRule, measure

    request = {"layer": layer, "precision": precision, "batch": batch, "algorithm": algorithm}
    algorithms = [build.ask(**request)["algorithm"] for build in builds]

    def sample(build: Build) -> Callable[[int], float]:
        return lambda runs: build.ask(runs=runs)["milliseconds"]

    rule = StoppingRule(samples=rounds, seconds=60, burst_ms=BURST_MS, max_burst=MAX_BURST)
    times = measure({number: sample(build) for number, build in enumerate(builds)}, rule)
    return {"algorithms": algorithms, "milliseconds": [each.median for each in times.values()]}


def row_of(starts: list[dict]) -> dict:
    """Return a layer's row from the results of each start."""
    before, after = (statistics.mean(start["milliseconds"][side] for start in starts) for side in (0, 1))
    first_build = [start["milliseconds"][0] for start in starts]
    return {
        "algorithms": starts[0]["algorithms"],
        "before_ms": before,
        "after_ms": after,
        "ratio": after / before,
        "noise": (max(first_build) - min(first_build)) / before,
    }


def build_folder(text: str) -> Path:
    """Return the folder of a build, for argparse; other folders would measure the installed package."""
    folder = Path(text)
    if not any(folder.glob("convswap/_native.*")):
        raise argparse.ArgumentTypeError(
            f"{text} has no convswap/_native.*: expected a folder that pip install --target has filled"
        )
    return folder


def positive(text: str) -> int:
    """Return a number from 1 on, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(text)


def batches(text: str) -> list[int]:
    """Return the batches of a list, for argparse."""
    return [positive(batch) for batch in text.split(",")]


def precisions(text: str) -> list[str]:
    """Return the precisions of a list, for argparse."""
    for precision in text.split(","):
        if precision not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"{precision!r}: expected some of {', '.join(PRECISIONS)}")
    return text.split(",")


def main() -> None:
    """Compare two builds, layer by layer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "before", type=build_folder, help="folder with the package `convswap` of the first build"
    )
    parser.add_argument("after", type=build_folder, help="folder with that of the second build")
    parser.add_argument("--batch", type=batches, default="1,8,64,512,4096,10000")
    parser.add_argument("--precision", type=precisions, default=",".join(PRECISIONS))
    parser.add_argument(
        "--algorithm", default="auto", help="name of an algorithm (default: the planner's choice)"
    )
    parser.add_argument("--rounds", type=positive, default=7, help="samples of each start (default: 7)")
    parser.add_argument("--starts", type=positive, default=3, help="processes of each build (default: 3)")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    options = parser.parse_args()
    sys.path.insert(0, str(options.after.resolve()))
    from convswap import _native
    from convswap.timing.suites import SUITES

    if not _native.cuda_devices():
        parser.error("no NVIDIA card or driver was found: builds are compared on a card")
    cases = [
        ({key: getattr(layer, key) for key in LAYER_KEYS}, precision, batch)
        for layer in SUITES["course"]
        for precision in options.precision
        for batch in options.batch
    ]
    starts_by_case: list[list[dict]] = [[] for _ in cases]
    for start in range(options.starts):
        builds = [Build(options.before), Build(options.after)]
        for case, layer_starts in zip(cases, starts_by_case, strict=True):
            layer_starts.append(times_of(builds, *case, options.algorithm, options.rounds))
        for build in builds:
            build.end()
        print(f"start {start + 1} of {options.starts} done", file=sys.stderr, flush=True)
    rows = []
    print(
        f"{'layer':14}{'precision':>10}{'batch':>7}{'before ms':>12}{'after ms':>12}{'ratio':>8}{'noise':>8}"
    )
    for (layer, precision, batch), starts in zip(cases, starts_by_case, strict=True):
        row = {"layer": layer["name"], "precision": precision, "batch": batch, **row_of(starts)}
        rows.append(row)
        first, second = row["algorithms"]
        print(
            f"{row['layer']:14}{precision:>10}{batch:>7}{row['before_ms']:12.5f}{row['after_ms']:12.5f}"
            f"{row['ratio']:8.4f}{row['noise']:8.4f}" + ("" if first == second else f"  {first} -> {second}")
        )
    ratios = [row["ratio"] for row in rows]
    slower = [row for row in rows if row["ratio"] > 1.01 + row["noise"]]
    mean = statistics.geometric_mean(ratios)
    print(
        f"{len(rows)} rows: ratio {mean:.4f} in the geometric mean, {min(ratios):.4f} to {max(ratios):.4f}; "
        f"{len(slower)} slower by more than 1 % and the noise"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
