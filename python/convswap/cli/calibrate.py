"""`convswap calibrate`: adapt the planner's estimates to this card."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import add_ray, add_results
from convswap.cli.results import check_results, console, give_results, progress_line

HELP = "measure this card, so that the planner's estimates fit it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap calibrate`."""
    add_ray(parser, "calibrate a card of each kind in the Ray cluster at this address")
    add_results(parser, json="write the factors as JSON; with --ray a list")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.planning.calibrate import calibrate, calibrate_cluster, print_calibration

    check_results({"--json": options.json})
    with progress_line() as progress:
        if options.ray is None:
            found = [calibrate(progress=progress)]
        else:
            found = calibrate_cluster(options.ray, progress)

    def show() -> None:
        for calibration in found:
            print_calibration(calibration, console())

    results = [calibration.to_json() for calibration in found]
    give_results(show, options, results[0] if options.ray is None else results)
    return 0
