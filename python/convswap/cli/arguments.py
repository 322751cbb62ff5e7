"""Options that several commands share, and functions that parse their values."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from convswap.cli.completion import names_or_files, network_names
from convswap.errors import ConvswapError

if TYPE_CHECKING:
    from convswap.inputs.user_inputs import InputData

# Options with the same meaning in several commands.
_COMMON_OPTIONS: Mapping[str, dict[str, Any]] = {
    "--data": {"metavar": "NAME", "help": "fashion-mnist, synthetic or random"},
    "--images": {"type": int, "metavar": "N", "help": "use the first N images of the data"},
    "--batch": {
        "type": int,
        "metavar": "B",
        "help": "images in a run; default: 1, or more with a data set and for included networks",
    },
    "--device": {"metavar": "D", "help": "cuda or cpu"},
    "--only": {"metavar": "REGEX", "help": "swap only the nodes whose name matches"},
    "--fuse": {
        "action": "store_true",
        "help": "fuse each Conv with the bias, batch normalisation, residual, activation and pooling after "
        "it, and a 1x1 Conv with the depthwise Conv before it; quantised Convs become QuantConv",
    },
    "--layout": {
        "metavar": "L",
        "help": "layout of the tensors between Convs: nchw, nhwc where that suits them, or auto: nhwc where "
        "that is estimated to gain on this card; default: nchw, or nhwc for quantised Convs with --fuse",
    },
    "--runs": {"type": int, "metavar": "N", "help": "recorded runs of each side; default: 20"},
    # Parsed by `input_shape`.
    "--input-shape": {
        "action": "append",
        "metavar": "[INPUT=]C,H,W",
        "help": "the shape of one sample, if the model leaves it open; repeat it for several inputs",
    },
}


def add_common(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the named options of `_COMMON_OPTIONS`."""
    for name in names:
        parser.add_argument(name, **_COMMON_OPTIONS[name])


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument MODEL."""
    # argcomplete reads the attribute `completer`, which argparse does not declare.
    model: Any = parser.add_argument("model", metavar="MODEL", help="a network's name or an ONNX file")
    model.completer = names_or_files(network_names)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that plan a model for a device."""
    add_model(parser)
    add_common(parser, "--batch", "--input-shape", "--device")
    add_kernel_options(parser)
    add_common(parser, "--fuse")
    add_inputs(parser)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add --inputs, the options for images, which `given_inputs` parses, and --op-library."""
    inputs = parser.add_argument_group("inputs")
    inputs.add_argument(
        "--inputs",
        metavar="FILE.npz|FOLDER",
        help="arrays with the names of the inputs, or a folder of NAME.npy; for a model with one image input "
        "a folder of images, rotated by their EXIF orientation and without the alpha channel",
    )
    add_pixels(inputs)
    inputs.add_argument(
        "--op-library",
        dest="op_libraries",
        action="append",
        default=[],
        metavar="FILE",
        help="a library with other custom ops that the model needs; repeat it for several",
    )


def add_pixels(parser: Any) -> None:
    """Add --mean, --std and --scale, which normalise images, to a parser or a group."""
    parser.add_argument(
        "--mean", metavar="M,...", help="for images: input = (scale * pixel - mean) / std; default: 0"
    )
    parser.add_argument("--std", metavar="S,...", help="one number, or one for each channel; default: 1")
    parser.add_argument(
        "--scale", type=float, metavar="F", help="default: 1/255, or 1 if the input has an integer type"
    )


def add_ray(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --ray, whose help is `text`."""
    parser.add_argument("--ray", metavar="ADDRESS", help=f"{text}; local starts one on this machine")


def add_results(parser: argparse.ArgumentParser, **helps: str) -> None:
    """Add an option for each file that a command can write, such as `json` for --json, with its help text."""
    results = parser.add_argument_group("results")
    for name, text in helps.items():
        results.add_argument(f"--{name}", metavar="FILE", help=text)


def arguments_of(function: Callable[..., object], options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `function` that have an option of the same name.

    Options that the user omitted are not passed, so the function's defaults apply. Options in text form that
    several commands share are parsed.
    """
    parsers = {"input_shape": input_shape, "inputs": given_inputs, "compute_capability": _capability}
    values = {name: getattr(options, name, None) for name in inspect.signature(function).parameters}
    arguments = {
        name: parsers[name](options) if name in parsers and hasattr(options, name) else value
        for name, value in values.items()
    }
    return {name: value for name, value in arguments.items() if value is not None}


def given_inputs(options: argparse.Namespace) -> InputData | None:
    """Return the values of --inputs, --mean, --std and --scale; None without --inputs."""
    image_options = {"--mean": options.mean, "--std": options.std, "--scale": options.scale}
    if options.inputs is None:
        for option, value in image_options.items():
            if value is not None:
                raise ConvswapError(f"{option} has no meaning without --inputs and a folder of images")
        return None
    # Imported here, because building the parser must not import NumPy.
    from convswap.inputs.user_inputs import InputData

    defaults = InputData(options.inputs)
    return InputData(
        options.inputs,
        numbers("--mean", options.mean) or defaults.mean,
        numbers("--std", options.std) or defaults.std,
        options.scale,
    )


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Return (0.5, 1.0) for "0.5,1", None for None."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConvswapError(
            f"{option} {text!r}: expected numbers with commas between, as in 0.485,0.456,0.406"
        ) from None


def add_kernel_options(parser: argparse.ArgumentParser, precisions: str = "tf32 or ieee") -> None:
    """Add --algorithm and --precision, as the group "kernels"."""
    kernels = parser.add_argument_group("kernels")
    kernels.add_argument(
        "--algorithm", default="auto", metavar="A", help="an algorithm's name, auto or tuned; default: auto"
    )
    kernels.add_argument("--precision", default="tf32", metavar="P", help=f"{precisions}; default: tf32")


def input_shape(options: argparse.Namespace) -> list[int] | dict[str, list[int]] | None:
    """Return [3, 224, 224] for "3,224,224" alone, and {"x": [3, 224, 224]} for "x=3,224,224"."""
    shapes: dict[str, list[int]] = {}
    for text in options.input_shape or ():
        match = re.fullmatch(r"(?:(.+)=)?(\d+(?:,\d+)*)", text, re.DOTALL)
        if match is None:
            raise ConvswapError(
                f"--input-shape {text!r}: expected whole numbers with commas between, as in 3,224,224, or "
                "x=3,224,224 for input x"
            )
        name = match[1] or ""
        if name in shapes or (shapes and "" in (name, *shapes)):
            raise ConvswapError(
                f"--input-shape {text!r} is one too many; give one for each input, as in x=3,224,224 if the "
                "model has several inputs"
            )
        shapes[name] = [int(number) for number in match[2].split(",")]
    return shapes.get("", shapes or None)


def capability(text: str) -> int:
    """Return 90 for "9.0" and for "90"."""
    from convswap.runtime.cards import as_capability

    return as_capability(text, "--compute-capability")


def _capability(options: argparse.Namespace) -> int | None:
    return None if options.compute_capability is None else capability(options.compute_capability)


def add_older_card(parser: argparse.ArgumentParser) -> None:
    """Add --compute-capability to a command that runs on a card."""
    parser.add_argument(
        "--compute-capability",
        metavar="C",
        help="use the card as one of an older compute capability, such as 8.0",
    )


def use_older_card(options: argparse.Namespace) -> None:
    """Use the cards of this process, and of those that it starts, as --compute-capability says.

    To be called before a card is used.

    Raises:
        ConvswapError: there is no card, or its compute capability is older.
    """
    requested = _capability(options)
    if requested is None:
        return
    from convswap import _native

    os.environ["CONVSWAP_COMPUTE_CAPABILITY"] = f"{requested / 10:.1f}"
    option = f"--compute-capability {options.compute_capability}"
    if options.device == "cpu" or not _native.cuda_devices():
        raise ConvswapError(f"{option} restricts a card, and none is used; leave it out")
    card = _native.cuda_devices()[0]
    if card["compute_capability"] != requested:
        older = f"{card['compute_capability'] / 10:.1f}"
        raise ConvswapError(
            f"{option}: {card['name']} has {older}; give this or an older one, or leave it out"
        )


def whole_numbers(option: str, text: str | None, example: str) -> list[int] | None:
    """Return [1, 64] for "1,64", None for None."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConvswapError(
            f"{option} {text!r}: expected whole numbers with commas between, as in {example}"
        ) from None


def refuse_together(
    option: str, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> None:
    """Refuse options that `option` would ignore: `values` that differ from their `defaults`, usually None."""
    for name, value in values.items():
        if value != (defaults or {}).get(name):
            raise ConvswapError(f"{name} has no meaning beside {option}; leave one of them out")
