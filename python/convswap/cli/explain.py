"""`convswap explain`: show the plan of each Conv of a model."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import add_plan_options, add_results, arguments_of
from convswap.cli.results import check_results, console, give_results

HELP = "show the plan of every Conv of a model, and the reason for it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap explain`."""
    add_plan_options(parser)
    parser.add_argument(
        "--compute-capability",
        metavar="C",
        help="plan for a typical card of a compute capability, such as 9.0, instead of a device",
    )
    add_results(parser, json="write the plans as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.planning.explain import explain, print_plan

    check_results({"--json": options.json}, model=options.model, options=options)
    plan = explain(**arguments_of(explain, options))
    give_results(lambda: print_plan(plan, console()), options, plan.to_json())
    return 0
