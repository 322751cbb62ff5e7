"""`convswap data`: show the data sets."""

from __future__ import annotations

import argparse
from pathlib import Path

from convswap.cli.results import check_results, progress_line, show_and_write
from convswap.errors import ConvswapError

HELP = "show images of a data set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap data`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="draw test images with predicted and true class")
    show.add_argument("--data", metavar="NAME", help="fashion-mnist or synthetic")
    show.add_argument("--images", type=int, default=50, metavar="N", help="the first N; default: 50")
    show.add_argument(
        "--model",
        default="ece408-2017-high",
        metavar="MODEL",
        help="the model that predicts: a network's name or an ONNX file; default: ece408-2017-high",
    )
    show.add_argument("-o", "--output", metavar="FILE.png", help="default: the data set's name")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.inputs.predictions import check_image_count, draw, predict
    from convswap.output.drawing import png

    if options.output and Path(options.output).suffix.lower() != ".png":
        raise ConvswapError(f"cannot write '{options.output}': a contact sheet is a PNG; name a .png file")
    check_results({"-o": options.output or f"{options.data or 'fashion-mnist'}.png"}, model=options.model)
    check_image_count(options.images)
    with progress_line() as progress:
        progress("reading the model and the data")
        predictions = predict(options.model, data=options.data, images=options.images)
        progress("drawing")
        sheet = png(draw(predictions))
    output = options.output or f"{predictions.dataset}.png"
    summary = (
        f"{output}: {predictions.correct} of {len(predictions.labels)} named right by {predictions.model}"
    )
    show_and_write(lambda: print(summary), (output, lambda: sheet))
    return 0
