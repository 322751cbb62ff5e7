"""`convswap export`: write a network or a checkpoint as an ONNX model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from convswap.cli.arguments import (
    refuse_together,
    whole_numbers,
)
from convswap.cli.completion import network_names
from convswap.cli.results import check_results, progress_line
from convswap.errors import ConvswapError
from convswap.progress import Progress

HELP = "write a network or a course checkpoint as an ONNX model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap export`."""
    network: Any = parser.add_argument(
        "network", nargs="?", metavar="NETWORK", help="one of `convswap export --list`"
    )
    network.completer = network_names
    parser.add_argument("--list", action="store_true", help="list the networks")
    parser.add_argument("--mxnet-symbol", metavar="FILE.json", help="an MXNet symbol")
    parser.add_argument("--mxnet-params", metavar="FILE.params", help="the symbol's parameters")
    parser.add_argument("--image-size", type=int, metavar="N", help="height and width of the symbol's input")
    parser.add_argument(
        "--mini-dnn",
        metavar="FILE.bin",
        help="a weights file of the course since 2020; the biases of its convolutions are dropped, as in the "
        "course",
    )
    parser.add_argument(
        "--torch",
        metavar="MODULE:NAME",
        help="a PyTorch module, a class or function that returns one, or the name of a torchvision model",
    )
    parser.add_argument(
        "--input-shape",
        metavar="C,H,W",
        help="the shape of one sample for --torch; default: the channels of its first Conv2d, 224, 224",
    )
    parser.add_argument("--alexnet", metavar="FILE.npy", help="AlexNet's weights, bvlc_alexnet.npy")
    parser.add_argument(
        "--data",
        metavar="NAME",
        help="the data set that the weights are for: fashion-mnist (default) or synthetic",
    )
    parser.add_argument("--weights", metavar="FILE.npz", help="weights of the network that `train` wrote")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="default: the name of the network or the input file, with .onnx",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap import export
    from convswap.graph.model_file import check_model_target

    if options.list:
        list_options = ("list", "command", "words")
        others = {name: value for name, value in vars(options).items() if name not in list_options}
        refuse_together("--list", {_option_name(name): value for name, value in others.items()})
        for network in export.networks():
            size = f"{network.image_size}x{network.image_size}"
            print(f"{network.name:18} {size:9}{network.origin}")
        return 0
    sources = {
        "a network's name (see `convswap export --list`)": options.network,
        "--mxnet-symbol with --mxnet-params": options.mxnet_symbol or options.mxnet_params,
        "--mini-dnn": options.mini_dnn,
        "--alexnet": options.alexnet,
        "--torch": options.torch,
    }
    named = [name for name, value in sources.items() if value]
    if len(named) != 1:
        raise ConvswapError(
            f"export needs one of {', '.join(sources)}; given: {' and '.join(named) or 'none of them'}"
        )
    read = {
        f"what {_option_name(name)} reads": getattr(options, name)
        for name in ("mxnet_symbol", "mxnet_params", "mini_dnn", "alexnet", "weights")
    }
    output = options.output or f"{_default_name(options)}.onnx"
    check_results({"-o": output}, read=read)
    check_model_target(output)
    with progress_line() as progress:
        if options.network:
            model = _export_network(options, progress)
        elif options.torch:
            model = _export_torch(options, progress)
        else:
            model = _read_checkpoint(options, progress)
    export.save(model, output)
    print(output)
    return 0


def _export_network(options: argparse.Namespace, progress: Progress) -> Any:
    from convswap import export

    _refuse_options(options, "a network's name", "image_size", "input_shape")
    if options.weights is not None:
        _refuse_options(options, "--weights, which have been trained", "data")
    progress(f"making {options.network}")
    return export.export_network(
        options.network,
        data=options.data,
        weights=options.weights,
        progress=lambda done, total: progress(f"fitting the last layer: {done} of {total} images"),
    )


def _export_torch(options: argparse.Namespace, progress: Progress) -> Any:
    from convswap import export

    _refuse_options(options, "--torch", "data", "weights", "image_size")
    shape = whole_numbers("--input-shape", options.input_shape, "3,224,224")
    if shape is not None and min(shape) < 1:
        raise ConvswapError(f"--input-shape {options.input_shape!r}: expected numbers from 1 on")
    progress(f"exporting {options.torch}")
    return export.export_torch(options.torch, shape)


def _default_name(options: argparse.Namespace) -> str:
    """Return the default name of the model's file, without its suffix."""
    if options.torch:
        return str(options.torch.rpartition(":")[2])
    if options.alexnet:
        return Path(options.alexnet).stem
    if options.mini_dnn:
        return Path(options.mini_dnn).name.removesuffix(".bin")
    if options.mxnet_symbol:
        return Path(options.mxnet_symbol).name.removesuffix(".json").removesuffix("-symbol")
    return str(options.network)


def _read_checkpoint(options: argparse.Namespace, progress: Progress) -> Any:
    """Return the model of a checkpoint."""
    from convswap import export

    if options.alexnet:
        _refuse_options(options, "--alexnet", "data", "weights", "image_size", "input_shape")
        progress(f"reading {options.alexnet}")
        return export.read_alexnet(options.alexnet)
    if options.mini_dnn:
        source = "--mini-dnn, whose network and weights are fixed"
        _refuse_options(options, source, "data", "weights", "image_size", "input_shape")
        return export.read_mini_dnn(options.mini_dnn)
    options_of_mxnet = {
        "--mxnet-symbol": options.mxnet_symbol,
        "--mxnet-params": options.mxnet_params,
        "--image-size": options.image_size,
    }
    missing = [name for name, value in options_of_mxnet.items() if value is None]
    if missing:
        raise ConvswapError(
            f"{' and '.join(missing)} missing: an MXNet checkpoint needs all of {', '.join(options_of_mxnet)}"
        )
    source = "an MXNet checkpoint, whose weights are already trained"
    _refuse_options(options, source, "data", "weights", "input_shape")
    return export.read_mxnet(options.mxnet_symbol, options.mxnet_params, options.image_size)


def _refuse_options(options: argparse.Namespace, source: str, *names: str) -> None:
    """Raise ConvswapError if one of the options `names` was given, which do not apply to `source`."""
    for name in names:
        if getattr(options, name) is not None:
            raise ConvswapError(f"{_option_name(name)} was given with {source}; leave it out")


def _option_name(name: str) -> str:
    """Return the option that the parser stores as `name`, as the user types it."""
    return "NETWORK" if name == "network" else f"--{name.replace('_', '-')}"
