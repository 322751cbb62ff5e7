"""Compare kernel times of `convswap profile` with those of Nsight Compute.

    python benchmarks/profile_against_ncu.py --json FILE ece408-2019fa

Nsight Compute serializes kernels: each starts on an idle card. In a profile a kernel follows the previous
kernel at once, as without a profiler. So each network is profiled twice, normally and with
CUDA_LAUNCH_BLOCKING=1, with which the host waits for every kernel. If the two profiles differ, neighbouring
kernels cost time, and the profiler is right. Networks of short kernels are recorded differently
(cupti_collector.py); this program does not check them.

All three measure the runs of `convswap profile NETWORK --against default --on-card`. Nsight Compute gets a
process for each side, since its table does not name sides. It controls neither clocks nor caches
(`--clock-control none --cache-control none`), and measures only time, in one pass.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import onnx_ir as ir
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from convswap.inputs.model_with_data import open_model_with_data, source_of
from convswap.models import find
from convswap.output.files import check_writable, write_json
from convswap.profiling.recording import record
from convswap.profiling.records import Records
from convswap.profiling.result import demangle
from convswap.runtime.device import choose_device, environment
from convswap.runtime.sessions import CONVSWAP, DEFAULT

RUNS = 10
# Microseconds; shorter kernels are not compared.
MIN_US = 100.0
SIDES = {side.name: side for side in (DEFAULT, CONVSWAP)}


class NcuWindow:
    """A replacement for the CUPTI collector: starts and stops Nsight Compute, and records nothing."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")

    def connect(self) -> None:
        """Do nothing: this uses no exclusive resource."""

    def start(self) -> None:
        """Do nothing: `prepare` starts the profiler after set-up and warm-up."""

    def now(self) -> int:
        """Return the nanoseconds of a monotonic clock."""
        return time.monotonic_ns()

    def prepare(self, since: int, long_kernels: bool | None = None) -> bool:
        """Start the profiler, which times short and long kernels alike.

        One more warm-up follows, which `by_ncu` leaves out.
        """
        self._require_success(self._driver.cuProfilerStart())
        return bool(long_kernels)

    def stop(self) -> Records:
        """Stop the profiler; return no records."""
        self._require_success(self._driver.cuProfilerStop())
        return Records((), ())

    @staticmethod
    def _require_success(status: int) -> None:
        if status:
            raise ConvswapError(f"the driver cannot start or stop Nsight Compute: status {status}")


def run_side(network: str, side: str, runs: int) -> None:
    """Run one side of `network`, in a process under Nsight Compute."""
    device = choose_device("cuda")
    tested = open_model_with_data(network, None)
    source = source_of(tested, None, None, device)
    model = tested.plain if side == DEFAULT.name else swap(tested.model).model
    record(
        {SIDES[side]: ir.to_proto(model)},
        source.first(source.batch),
        device,
        NcuWindow(),
        runs=runs,
        resident=True,
        progress=lambda _: None,
    )


def by_ncu(network: str, side: str, runs: int) -> dict[str, float]:
    """Return the mean microseconds of each kernel of the timed runs of one side, by its demangled name."""
    command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    command += ["--metrics", "gpu__time_duration.sum", "--print-kernel-base", "mangled"]
    command += ["--print-units", "base", "--csv", sys.executable, __file__, "--run", network, side, str(runs)]
    out = run(command)
    table = out[out.find('"ID"') :].splitlines()
    times = defaultdict(list)
    for row in csv.DictReader(table):
        times[demangle(row["Kernel Name"])].append(float(row["Metric Value"].replace(",", "")) / 1e3)
    if not times:
        raise ConvswapError(f"Nsight Compute saw no kernel of {network}: {out.strip()[-300:]}")
    # The last warm-up comes before the timed runs, with as many calls of each kernel.
    return {name: fmean(each[len(each) // (runs + 1) :]) for name, each in times.items()}


def by_profile(network: str, runs: int, blocking: bool) -> dict[str, dict]:
    """Return the results of `convswap profile` by side."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "convswap.cli", "profile", network, "--against", "default"]
        command += ["--on-card", "--runs", str(runs), "--json", str(file)]
        run(command, {"CUDA_LAUNCH_BLOCKING": "1"} if blocking else {})
        return json.loads(file.read_text(encoding="utf-8"))["sides"]


def run(command: list[str], variables: dict[str, str] | None = None) -> str:
    """Run `command` with `variables` added to its environment; return its output.

    Raises:
        ConvswapError: it failed.
    """
    completed = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | (variables or {})
    )
    if completed.returncode:
        raise ConvswapError(
            f"{command[0]} ended with status {completed.returncode}: "
            f"{(completed.stdout + completed.stderr).strip()[-600:]}"
        )
    return completed.stdout


def rows_of(network: str, runs: int) -> list[dict]:
    """Return a row for each kernel of `network` whose calls take more than MIN_US microseconds on average."""
    profiles = {blocking: by_profile(network, runs, blocking) for blocking in (False, True)}
    rows = []
    for side in SIDES:
        entries, blocking_entries = (
            {entry["name"]: entry for entry in profiles[blocking][side]["profiling_result"]}
            for blocking in (False, True)
        )
        ncu = by_ncu(network, side, runs)
        for name, entry in entries.items():
            if entry["avg_ns"] > MIN_US * 1e3:
                rows.append(
                    {
                        "network": network,
                        "side": side,
                        "kernel": name,
                        "nodes": entry["nodes"],
                        "profile_us": entry["avg_ns"] / 1e3,
                        # cuDNN's search may choose other kernels in another process.
                        "profile_apart_us": blocking_entries[name]["avg_ns"] / 1e3
                        if name in blocking_entries
                        else None,
                        "ncu_us": ncu.get(name),
                    }
                )
    return rows


def print_rows(rows: list[dict]) -> None:
    """Print a line for each kernel: its times, and the deviation of each profile from Nsight Compute."""
    print(f"{'profile':>9} {'apart':>9} {'ncu':>9}  us  kernel")
    for row in rows:
        times = [row["profile_us"], row["profile_apart_us"], row["ncu_us"]]
        cells = " ".join(f"{'-' if value is None else f'{value:.1f}':>9}" for value in times)
        deviations = [
            "" if value is None or row["ncu_us"] is None else f"{value / row['ncu_us'] - 1:+.1%}"
            for value in times[:2]
        ]
        print(
            f"{cells}  {deviations[0]:>7} {deviations[1]:>7}  "
            f"{row['side']} {','.join(row['nodes'])}: {row['kernel'][:60]}"
        )


def main() -> int:
    """Compare the networks and write the file; return the exit status."""
    if sys.argv[1:2] == ["--run"]:
        network, side, runs = sys.argv[2:]
        run_side(network, side, int(runs))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="file for the results")
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="a network's name")
    parser.add_argument(
        "--runs", type=int, default=RUNS, metavar="N", help=f"timed runs of each side; default: {RUNS}"
    )
    options = parser.parse_args()
    try:
        if options.runs < 1:
            raise ConvswapError(f"--runs must be at least 1, but {options.runs} was given")
        if shutil.which("ncu") is None:
            raise ConvswapError("there is no ncu; install Nsight Compute, which comes with the CUDA toolkit")
        for network in options.networks:
            find(network)
        device = choose_device("cuda")
        options.json.parent.mkdir(parents=True, exist_ok=True)
        check_writable(options.json)
        rows = []
        for network in options.networks:
            print(network, file=sys.stderr, flush=True)
            rows += rows_of(network, options.runs)
        print_rows(rows)
        results = {"environment": environment(device), "runs": options.runs, "rows": rows}
        write_json(options.json, results)
    except (ConvswapError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
