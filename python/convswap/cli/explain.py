"""`convswap explain`: tell how each Conv of a model is computed."""

from __future__ import annotations

import argparse
from typing import Any

from convswap.cli.arguments import (
    add_plan_options,
    capability,
    given_inputs,
    input_shape,
)
from convswap.cli.results import check_results, console, give_results

HELP = "the plan of every Conv of a model, and why"


def add_parser(commands: Any) -> None:
    """Add `convswap explain`."""
    parser = commands.add_parser("explain", help=HELP)
    add_plan_options(parser)
    parser.add_argument(
        "--compute-capability", metavar="C", help="plan for a typical card, such as 9.0, instead of a device"
    )
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", help="write the plans as JSON")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Do what the options ask for; return the exit status."""
    from convswap.planning.explain import explain, print_plan

    check_results({"--json": options.json}, model=options.model, options=options)
    plan = explain(
        options.model,
        batch=options.batch,
        device=options.device,
        precision=options.precision,
        algorithm=options.algorithm,
        fuse=options.fuse,
        input_shape=input_shape(options),
        inputs=given_inputs(options),
        op_libraries=options.op_library,
        compute_capability=capability(options.compute_capability),
    )
    give_results(lambda: print_plan(plan, console()), options, plan.to_json())
    return 0
