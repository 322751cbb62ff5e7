"""`convswap tune`: measure which algorithm is fastest."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import add_plan_options, add_results, arguments_of
from convswap.cli.results import check_results, console, give_results, progress_line
from convswap.errors import ConvswapError

HELP = "measure every algorithm and store the fastest for each Conv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap tune`."""
    add_plan_options(parser)
    parser.add_argument("--runs", type=int, metavar="N", help="timed runs of each algorithm; default: 20")
    parser.add_argument("--only", metavar="REGEX", help="measure only the nodes whose name matches")
    add_results(parser, json="write the times as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.planning.tune import print_tuning, tune

    check_results({"--json": options.json}, model=options.model, options=options)
    with progress_line() as progress:
        tuning = tune(**arguments_of(tune, options), progress=progress)
    give_results(lambda: print_tuning(tuning, console()), options, tuning.to_json())
    if tuning.not_stored is not None:
        raise ConvswapError(tuning.not_stored)
    return 0
