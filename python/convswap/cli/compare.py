"""`convswap compare`: compare a model before and after the swap."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import (
    add_common,
    add_inputs,
    add_kernel_options,
    add_model,
    add_older_card,
    add_results,
    arguments_of,
    use_older_card,
)
from convswap.cli.results import check_results, console, give_results, made_by, progress_line

HELP = "compare accuracy and time of a model before and after the swap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap compare`."""
    add_model(parser)
    add_common(parser, "--data", "--images", "--batch", "--input-shape", "--device")
    add_older_card(parser)
    add_kernel_options(parser)
    add_common(parser, "--only", "--fuse", "--layout")
    parser.add_argument("--tolerance", type=float, metavar="T", help="largest relative L2 error")
    parser.add_argument("--against", default="default", metavar="SIDES", help="default or all")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        "--course",
        dest="labelled",
        action="store_true",
        help="also print the two lines that ECE 408's programs print, for each side",
    )
    parts.add_argument(
        "--no-layers",
        dest="time_layers",
        action="store_false",
        help="time only the whole model, which is much quicker for a deep one",
    )
    add_inputs(parser)
    add_results(parser, json="write the comparison as JSON", html="write a page: verdict, plot and tables")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.comparison.compare import compare_with
    from convswap.comparison.preparation import CompareOptions
    from convswap.comparison.report import print_comparison, print_course_lines

    use_older_card(options)
    written = {"--json": options.json, "--html": options.html}
    check_results(written, model=options.model, options=options)
    with progress_line() as progress:
        compare_options = CompareOptions(**arguments_of(CompareOptions, options))
        comparison = compare_with(options.model, compare_options, progress)

    def page() -> str:
        from convswap.comparison.report import compare_html

        return compare_html(comparison, made_by(options))

    def show() -> None:
        out = console()
        print_comparison(comparison, out)
        if options.labelled:
            print_course_lines(comparison, out)

    give_results(show, options, comparison.to_json(), (options.html, page))
    return 0 if comparison.within_tolerance else 1
