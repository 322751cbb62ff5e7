"""`convswap warm`: compile the kernels of a model in advance."""

from __future__ import annotations

import argparse

from convswap.cli.arguments import (
    add_common,
    add_inputs,
    add_kernel_options,
    arguments_of,
    capability,
    refuse_together,
    whole_numbers,
)
from convswap.cli.results import check_results, console, progress_line
from convswap.errors import ConvswapError

HELP = "compile a model's kernels in advance, for this or other cards"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap warm`."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a network's name or an ONNX file")
    parser.add_argument(
        "--batch", metavar="B,...", help="images in a run; default: 1,8,64,512 if the model leaves it open"
    )
    add_common(parser, "--input-shape")
    add_kernel_options(parser)
    add_common(parser, "--fuse")
    parser.add_argument(
        "--compute-capability",
        metavar="C,...",
        help="those of the cards, such as 8.0,9.0; they need not be installed; default: this machine's",
    )
    add_inputs(parser)
    results = parser.add_argument_group("results")
    results.add_argument(
        "-o",
        "--output",
        metavar="FILE.pack",
        help="write the kernels as a pack, for the session entry convswap.pack",
    )
    parser.add_argument("--clear", action="store_true", help="delete all stored kernels instead")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.planning.warm import clear, print_warmed, warm

    if options.clear:
        others = {
            "MODEL": options.model,
            "--batch": options.batch,
            "--compute-capability": options.compute_capability,
            "-o": options.output,
            "--inputs": options.inputs,
        }
        refuse_together("--clear", others)
        print(f"{clear()} kernels deleted")
        return 0
    if options.model is None:
        raise ConvswapError("warm: expected a MODEL, or --clear; see `convswap warm --help`")
    check_results({"-o": options.output}, model=options.model, options=options)
    capabilities = options.compute_capability and [
        capability(text) for text in options.compute_capability.split(",")
    ]
    with progress_line() as progress:
        warmed = warm(
            **arguments_of(warm, options),
            batches=whole_numbers("--batch", options.batch, "1,64,512"),
            compute_capabilities=capabilities,
            pack=options.output,
            progress=progress,
        )
    print_warmed(warmed, console())
    return 0
