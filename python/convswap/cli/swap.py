"""`convswap swap`: replace the Conv nodes of a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from convswap.cli.arguments import add_common, add_kernel_options, arguments_of
from convswap.cli.results import check_results, show_and_write
from convswap.errors import ConvswapError
from convswap.output.files import json_text

HELP = "replace the Conv nodes of a model by convswap.Conv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap swap`."""
    parser.add_argument("model", metavar="IN.onnx")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", required=True)
    add_kernel_options(parser)
    add_common(parser, "--only", "--fuse", "--layout", "--batch")
    parser.add_argument("--force", action="store_true", help="allow OUT.onnx to be IN.onnx")
    results = parser.add_argument_group("results")
    results.add_argument("--report", metavar="FILE.json", help="write what was swapped and what was left")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.graph.fusion.fuse import fusion_counts, fusion_lines
    from convswap.graph.quantised.convert import quantised_lines
    from convswap.graph.swap import swap
    from convswap.models.networks import ALL_NETWORKS

    if options.model in ALL_NETWORKS and not Path(options.model).exists():
        raise ConvswapError(
            f"'{options.model}' is a network and no file; write it first: `convswap export {options.model}`"
        )
    output = {
        "what -o writes": options.output,
        "where the weights of OUT.onnx may go": f"{options.output}.data",
    }
    check_results({"--report": options.report}, model=options.model, read=output)
    result = swap(**arguments_of(swap, options))
    result.save(options.output, force=options.force)
    fused = f", {fusion_counts(result.fused)}" if options.fuse else ""

    def show() -> None:
        print(f"{options.output}: {len(result.swapped)} Conv swapped, {len(result.not_swapped)} left{fused}")
        for left in result.not_swapped:
            print(f"  left {left.op} {left.node}: {left.reason}")
        for line in (*fusion_lines(result.fused, result.not_fused), *quantised_lines(result.not_quantised)):
            print(f"  {line}")
        for line in [] if result.layout is None else result.layout.lines():
            print(f"  {line}")
        for note in result.notes:
            print(f"Note: {note}.")
        if not result.swapped and not result.not_swapped:
            print("Note: all Convs were swapped before; they keep their algorithm and precision.")

    show_and_write(show, (options.report, lambda: json_text(result.report())))
    return 0
