"""`convswap evaluate`: accuracy and agreement of both sides on a whole data set."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import (
    add_common,
    add_kernel_options,
    add_model,
    add_pixels,
    add_ray,
    add_results,
    arguments_of,
    numbers,
)
from convswap.cli.results import check_results, console, give_results, made_by, progress_line

HELP = "evaluate accuracy and agreement of both sides on a whole data set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap evaluate`."""
    add_model(parser)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        required=True,
        metavar="FOLDER|FILE.parquet|NAME",
        help="a folder of images, a Parquet file with a column of them, fashion-mnist, synthetic or random",
    )
    data.add_argument(
        "--labels",
        metavar="FILE|COLUMN",
        help="an integer in each line, in the order of the sorted file names, or lines name,label; for a "
        "Parquet file the column; default: the folder of each image, or the column label",
    )
    data.add_argument(
        "--preprocess",
        default="none",
        metavar="P",
        help="imagenet: resize the shorter side to 256/224 of the input's, crop the centre, and normalise "
        "with ImageNet's mean and std; none: resize to the input's size; default: none",
    )
    add_pixels(data)
    data.add_argument(
        "--processes", type=int, metavar="N", help="processes that decode images; default: one for each core"
    )
    add_common(parser, "--images", "--batch", "--input-shape", "--device")
    add_kernel_options(parser)
    add_common(parser, "--fuse", "--layout")
    parser.add_argument(
        "--against",
        default="default",
        metavar="SIDES",
        help="what to evaluate beside the swapped model; only default: the provider alone",
    )
    parser.add_argument(
        "--resume", metavar="FOLDER", help="keep results in this folder, and compute only those that it lacks"
    )
    add_ray(parser, "run on all cards of the Ray cluster at this address")
    add_results(parser, json="write the evaluation as JSON", html="write a page with a contact sheet")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.evaluation.evaluate import EvaluateOptions, evaluate
    from convswap.evaluation.report import evaluation_html, print_evaluation

    options.mean, options.std = numbers("--mean", options.mean), numbers("--std", options.std)
    read = {"what --data reads": options.data, "what --labels reads": options.labels}
    check_results({"--json": options.json, "--html": options.html}, model=options.model, read=read)
    with progress_line() as progress:
        arguments = arguments_of(EvaluateOptions, options)
        evaluation = evaluate(options.model, options.data, progress=progress, **arguments)

    def page() -> str:
        return evaluation_html(evaluation, made_by(options))

    give_results(
        lambda: print_evaluation(evaluation, console()), options, evaluation.to_json(), (options.html, page)
    )
    return 0
