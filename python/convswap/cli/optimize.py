"""`convswap optimize`: swap or fuse the Convs that become faster on this device."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import (
    add_common,
    add_inputs,
    add_model,
    add_ray,
    add_results,
    arguments_of,
    refuse_together,
    whole_numbers,
)
from convswap.cli.results import check_results, console, give_results, made_by, progress_line
from convswap.errors import ConvswapError

HELP = "swap or fuse the Convs that become faster on this device, and check the outputs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap optimize`."""
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT.onnx",
        help="the optimized model, written only if it is faster",
    )
    parser.add_argument(
        "--batch",
        metavar="B,...",
        help="images in a run; with several sizes the geometric mean of the speedups counts",
    )
    add_common(parser, "--input-shape", "--device")
    parser.add_argument(
        "--precision",
        default="match",
        metavar="P",
        help="match (as accurate as the default provider on each Conv), tf32 or ieee; default: match",
    )
    add_inputs(parser)
    add_ray(parser, "optimize for each kind of card in the Ray cluster at this address, as one file")
    add_results(
        parser,
        json="write the measurements as JSON",
        html="write a page with the speedups and the tables",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.optimizing.on_cluster import optimize_on_cluster
    from convswap.optimizing.optimize import optimize_with
    from convswap.optimizing.preparation import OptimizeOptions
    from convswap.optimizing.report import optimize_html, print_optimization

    if options.ray is not None:
        refuse_together("--ray", {"--device": options.device})
    written = {"-o": options.output, "--json": options.json, "--html": options.html}
    other_files = {"where the weights of OUT.onnx may go": f"{options.output}.data"}
    check_results(written, model=options.model, read=other_files, options=options)
    batches = whole_numbers("--batch", options.batch, "1,32")
    with progress_line() as progress:
        optimize_options = OptimizeOptions(
            **arguments_of(OptimizeOptions, options), batches=None if batches is None else tuple(batches)
        )
        if options.ray is None:
            result = optimize_with(options.model, options.output, optimize_options, progress)
        else:
            result = optimize_on_cluster(
                options.ray, options.model, options.output, optimize_options, progress
            )

    def page() -> str:
        return optimize_html(result, made_by(options))

    give_results(
        lambda: print_optimization(result, console()), options, result.to_json(), (options.html, page)
    )
    if result.not_written is not None:
        raise ConvswapError(result.not_written)
    return 0 if result.written is not None else 1
