"""`convswap bench`: time the layers of a suite, or a model's first run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from convswap.cli.arguments import (
    add_common,
    add_inputs,
    add_kernel_options,
    add_older_card,
    add_results,
    arguments_of,
    refuse_together,
    use_older_card,
    whole_numbers,
)
from convswap.cli.completion import suite_names
from convswap.cli.results import check_results, console, give_results, progress_line
from convswap.errors import ConvswapError

HELP = "time single layers of a suite"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap bench`."""
    suite: Any = parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="course (default), many-channels, one-d, three-d, depthwise-grouped, small-groups, "
        "first-layers, one-image, fused, int8 or a large network",
    )
    suite.completer = suite_names
    parser.add_argument("--layers", metavar="REGEX", help="only the layers whose name matches")
    parser.add_argument("--batch", metavar="B,...", help="batch sizes")
    add_common(parser, "--device")
    add_older_card(parser)
    add_kernel_options(
        parser, precisions="tf32 or ieee for float32 tensors, float16, bfloat16, or int8 for quantised Convs"
    )
    parser.add_argument(
        "--against",
        default="default",
        metavar="SIDES",
        help="default; all, which adds the default provider's other options and PyTorch; or algorithms, "
        "which compares the planner's choice with the fastest algorithm",
    )
    parser.add_argument(
        "--alternate",
        action="store_true",
        help="compare runs whose batch changes each time, through all of --batch, with runs of one batch",
    )
    parser.add_argument(
        "--first-run",
        metavar="MODEL",
        help="instead of a suite, time a model's session creation and first run, in new processes",
    )
    add_common(parser, "--input-shape")
    add_inputs(parser)
    add_results(parser, json="write the rows as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    use_older_card(options)
    if options.first_run is not None:
        return _bench_first_run(options)
    input_options = {"--input-shape": options.input_shape, "--inputs": options.inputs}
    input_options |= {
        "--op-library": options.op_libraries or None,
        "--mean": options.mean,
        "--std": options.std,
    }
    refuse_together("a suite, whose shapes are fixed", {**input_options, "--scale": options.scale})
    if options.alternate:
        return _bench_alternating(options)
    from convswap.bench.report import print_suite
    from convswap.bench.suite_runs import run_suite

    check_results({"--json": options.json})
    rows: list[dict[str, Any]] = []
    try:
        with progress_line() as progress:
            rows.extend(run_suite(**_suite_arguments(run_suite, options), progress=progress))
    finally:
        # After an interrupt, or a layer for which memory is too small, the rows so far are shown.
        if rows:
            give_results(lambda: print_suite(rows, console(), options.device, options.against), options, rows)
    return 0


def _suite_arguments(function: Callable[..., object], options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `function`, with the batch sizes."""
    batches = whole_numbers("--batch", options.batch, "1,64,512")
    return {**arguments_of(function, options), "batches": batches}


def _bench_alternating(options: argparse.Namespace) -> int:
    from convswap.bench.alternating import print_alternating, run_alternating

    refuse_together("--alternate", {"--against": options.against}, {"--against": "default"})
    check_results({"--json": options.json})
    with progress_line() as progress:
        rows = run_alternating(**_suite_arguments(run_alternating, options), progress=progress)
    give_results(lambda: print_alternating(rows, console(), options.device), options, rows)
    return 0


def _bench_first_run(options: argparse.Namespace) -> int:
    from convswap.bench.first_run import first_run, print_first_run

    others = {"--against": options.against, "--layers": options.layers, "--alternate": options.alternate}
    defaults = {"--against": "default", "--alternate": False}
    refuse_together("--first-run", {**others, "SUITE": options.suite}, defaults)
    batches = whole_numbers("--batch", options.batch, "1,64,512")
    if batches is not None and len(batches) != 1:
        raise ConvswapError(f"--first-run takes one batch size, but --batch {options.batch} was given")
    check_results({"--json": options.json}, model=options.first_run, options=options)
    with progress_line() as progress:
        arguments = arguments_of(first_run, options)
        if batches is not None:
            arguments["batch"] = batches[0]
        result = first_run(options.first_run, **arguments, progress=progress)
    give_results(lambda: print_first_run(result, console(), options.device), options, result)
    return 0
