"""`convswap profile`: tell what takes a GPU's time."""

from __future__ import annotations

import argparse
from typing import Any

from convswap.cli.arguments import (
    add_input_shape,
    add_inputs,
    add_kernel_options,
    add_model,
    add_results,
    arguments_of,
)
from convswap.cli.results import check_results, console, give_results, progress_line

HELP = "GPU kernels, copies and CUDA calls of a model, most expensive first, by CUPTI"


def add_parser(commands: Any) -> None:
    """Add `convswap profile`."""
    parser = commands.add_parser("profile", help=HELP)
    add_model(parser)
    parser.add_argument("--data", metavar="NAME", help="fashion-mnist, synthetic or random")
    parser.add_argument("--images", type=int, metavar="N", help="the first N of the data")
    parser.add_argument("--batch", type=int, metavar="B", help="images in a run")
    add_input_shape(parser)
    add_kernel_options(parser)
    parser.add_argument("--only", metavar="REGEX", help="swap the nodes whose name matches")
    parser.add_argument("--fuse", action="store_true", help="let Convs take in what follows them")
    parser.add_argument(
        "--against", metavar="SIDES", help="default, or all for its other options for Conv too"
    )
    parser.add_argument("--runs", type=int, metavar="N", help="recorded runs of each side; default: 20")
    parser.add_argument(
        "--on-card",
        dest="resident",
        action="store_true",
        help="leave inputs and outputs on the card, as compare does; by default each run copies them",
    )
    add_inputs(parser)
    add_results(
        parser,
        json="write the profile as JSON",
        trace="write a trace for Perfetto (ui.perfetto.dev)",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Do what the options ask for; return the exit status."""
    from convswap.profiling.profile import profile
    from convswap.profiling.report import print_profile
    from convswap.profiling.trace import trace_text

    written = {"--json": options.json, "--trace": options.trace}
    check_results(written, model=options.model, options=options)
    with progress_line() as progress:
        found = profile(**arguments_of(profile, options), progress=progress)
    give_results(
        lambda: print_profile(found, console()),
        options,
        found.to_json(),
        (options.trace, lambda: trace_text(found)),
    )
    return 0
