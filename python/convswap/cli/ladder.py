"""`convswap ladder`: measure every rung of the ladder."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import add_common, add_results, arguments_of
from convswap.cli.results import check_results, console, give_results, progress_line

HELP = "time every optimisation step from plain loops to tensor cores"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap ladder`."""
    parser.add_argument(
        "network", nargs="?", metavar="NETWORK", help="a course network; default: ece408-2017-high"
    )
    parser.add_argument("--data", metavar="NAME", help="fashion-mnist or synthetic")
    parser.add_argument(
        "--images", type=int, metavar="N", help="use the first N images of the data; default: 10,000"
    )
    add_common(parser, "--device")
    add_results(
        parser, json="write the figures as JSON", html="write a page with plot, table and every rung's text"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.output.drawing import require_matplotlib
    from convswap.tutorial.ladder.climb import climb
    from convswap.tutorial.ladder.report import ladder_html, print_ladder

    check_results({"--json": options.json, "--html": options.html})
    if options.html is not None:
        require_matplotlib()
    with progress_line() as progress:
        result = climb(**arguments_of(climb, options), progress=progress)
    give_results(
        lambda: print_ladder(result, console()),
        options,
        result.to_json(),
        (options.html, lambda: ladder_html(result)),
    )
    return 0 if result.is_right else 1
