"""`convswap bench`: time the layers of a suite, or a model's first run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from convswap.cli.arguments import (
    add_common,
    add_inputs,
    add_kernel_options,
    add_results,
    arguments_of,
    refuse_beside,
    whole_numbers,
)
from convswap.cli.completion import suite_names
from convswap.cli.results import check_results, console, give_results, progress_line
from convswap.errors import ConvswapError

HELP = "time the layers of a suite, alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `convswap bench` takes."""
    suite: Any = parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="course (default), many-channels, one-d, three-d, depthwise-grouped, small-groups, "
        "first-layers, one-image, fused or a large network",
    )
    suite.completer = suite_names
    parser.add_argument("--layers", metavar="REGEX", help="the layers whose name matches")
    parser.add_argument("--batch", metavar="B,...", help="batch sizes")
    add_common(parser, "--device")
    add_kernel_options(parser, precisions="tf32 or ieee for float32 tensors, float16 or bfloat16")
    parser.add_argument(
        "--against",
        default="default",
        metavar="SIDES",
        help="default, all for its other options and PyTorch too, or algorithms for how far the choice is "
        "from the best",
    )
    parser.add_argument(
        "--alternate",
        action="store_true",
        help="runs whose batch changes, through all of --batch in turn, against runs that keep theirs",
    )
    parser.add_argument(
        "--first-run",
        metavar="MODEL",
        help="instead of a suite: a model's session creation and first run, in fresh processes",
    )
    add_common(parser, "--input-shape")
    add_inputs(parser)
    add_results(parser, json="write the rows as JSON")


def run(options: argparse.Namespace) -> int:
    """Do what the options ask for; return the exit status."""
    if options.first_run is not None:
        return _bench_first_run(options)
    fed = {"--input-shape": options.input_shape, "--inputs": options.inputs}
    fed |= {"--op-library": options.op_libraries or None, "--mean": options.mean, "--std": options.std}
    refuse_beside("a suite, whose shapes are fixed", {**fed, "--scale": options.scale})
    if options.alternate:
        return _bench_alternating(options)
    from convswap.bench.report import print_suite
    from convswap.bench.suite_runs import run_suite

    check_results({"--json": options.json})
    rows: list[dict[str, Any]] = []
    try:
        with progress_line() as progress:
            rows.extend(run_suite(**_asked(run_suite, options), progress=progress))
    finally:
        # Also those that a stop, or a layer that memory does not suffice for, came after.
        if rows:
            give_results(lambda: print_suite(rows, console(), options.device, options.against), options, rows)
    return 0


def _asked(function: Callable[..., object], options: argparse.Namespace) -> dict[str, Any]:
    """Return what says which layers are timed, and how, as `function` takes it."""
    batches = whole_numbers("--batch", options.batch, "1,64,512")
    return {**arguments_of(function, options), "batches": batches}


def _bench_alternating(options: argparse.Namespace) -> int:
    from convswap.bench.alternating import print_alternating, run_alternating

    refuse_beside("--alternate", {"--against": options.against}, {"--against": "default"})
    check_results({"--json": options.json})
    with progress_line() as progress:
        rows = run_alternating(**_asked(run_alternating, options), progress=progress)
    give_results(lambda: print_alternating(rows, console(), options.device), options, rows)
    return 0


def _bench_first_run(options: argparse.Namespace) -> int:
    from convswap.bench.first_run import first_run, print_first_run

    given = {"--against": options.against, "--layers": options.layers, "--alternate": options.alternate}
    usual = {"--against": "default", "--alternate": False}
    refuse_beside("--first-run", {**given, "SUITE": options.suite}, usual)
    batches = whole_numbers("--batch", options.batch, "1,64,512")
    if batches is not None and len(batches) != 1:
        raise ConvswapError(f"--first-run takes one batch size, but --batch {options.batch} was given")
    check_results({"--json": options.json}, model=options.first_run, options=options)
    with progress_line() as progress:
        asked = arguments_of(first_run, options)
        if batches is not None:
            asked["batch"] = batches[0]
        found = first_run(options.first_run, **asked, progress=progress)
    give_results(lambda: print_first_run(found, console(), options.device), options, found)
    return 0
