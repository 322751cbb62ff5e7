"""`convswap profile`: show which kernels and calls take a GPU's time."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import (
    add_common,
    add_inputs,
    add_kernel_options,
    add_model,
    add_results,
    arguments_of,
)
from convswap.cli.results import check_results, console, give_results, progress_line

HELP = "list a model's GPU kernels, copies and CUDA calls, most expensive first, by CUPTI"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap profile`."""
    add_model(parser)
    add_common(parser, "--data", "--images", "--batch", "--input-shape")
    add_kernel_options(parser)
    add_common(parser, "--only")
    parser.add_argument("--fuse", action="store_true", help="fuse Convs with the nodes after them")
    parser.add_argument(
        "--against", metavar="SIDES", help="default, or all, which adds its other options for Conv"
    )
    add_common(parser, "--runs")
    parser.add_argument(
        "--on-card",
        dest="resident",
        action="store_true",
        help="keep inputs and outputs on the card, as compare does; by default each run copies them",
    )
    add_inputs(parser)
    add_results(
        parser,
        json="write the profile as JSON",
        trace="write a trace for Perfetto (ui.perfetto.dev)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.profiling.profile import profile
    from convswap.profiling.report import print_profile
    from convswap.profiling.trace import trace_text

    written = {"--json": options.json, "--trace": options.trace}
    check_results(written, model=options.model, options=options)
    with progress_line() as progress:
        result = profile(**arguments_of(profile, options), progress=progress)
    give_results(
        lambda: print_profile(result, console()),
        options,
        result.to_json(),
        (options.trace, lambda: trace_text(result)),
    )
    return 0
