"""`convswap study`: split AlexNet's time into its parts, over batch sizes."""

from __future__ import annotations

import argparse
from pathlib import Path

from convswap.cli.arguments import add_common, add_kernel_options, arguments_of, whole_numbers
from convswap.cli.results import check_results, console, give_results, progress_line
from convswap.errors import ConvswapError

HELP = "split AlexNet's time into its parts over batch sizes, by CUPTI"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap study`."""
    parser.add_argument("network", metavar="NETWORK", help="alexnet")
    parser.add_argument("--batches", metavar="B,...", help="batch sizes; default: powers of 2 up to 1024")
    add_kernel_options(parser)
    parser.add_argument("--fuse", action="store_true", help="fuse Convs with the nodes after them")
    add_common(parser, "--runs")
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    results.add_argument(
        "-o", "--output", metavar="FILE.png", help="the two plots; default: NETWORK-study.png"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.output.drawing import png
    from convswap.tutorial.study.report import draw_study, print_study
    from convswap.tutorial.study.study import study

    output = options.output or f"{options.network}-study.png"
    if Path(output).suffix.lower() != ".png":
        raise ConvswapError(f"cannot write '{output}': the plots are a PNG; name a .png file")
    check_results({"--json": options.json, "-o": output})
    with progress_line() as progress:
        arguments = arguments_of(study, options)
        arguments["batches"] = whole_numbers("--batches", options.batches, "1,64,1024")
        result = study(**arguments, progress=progress)
    give_results(
        lambda: print_study(result, console()),
        options,
        result.to_json(),
        (output, lambda: png(draw_study(result))),
    )
    print(output)
    return 0
