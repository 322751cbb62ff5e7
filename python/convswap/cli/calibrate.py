"""`convswap calibrate`: adapt the planner's estimates to this card."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import add_results
from convswap.cli.results import check_results, console, give_results, progress_line

HELP = "measure this card, so that the planner's estimates fit it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap calibrate`."""
    add_results(parser, json="write the factors as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.planning.calibrate import calibrate, print_calibration

    check_results({"--json": options.json})
    with progress_line() as progress:
        calibration = calibrate(progress=progress)
    give_results(lambda: print_calibration(calibration, console()), options, calibration.to_json())
    return 0
