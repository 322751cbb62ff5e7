"""What commands share of their arguments: the options themselves, and what their texts mean."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from convswap.cli.completion import names_or_files, network_names
from convswap.errors import ConvswapError

if TYPE_CHECKING:
    from convswap.inputs.user_inputs import InputData

# Options that mean the same in several commands.
_COMMON: Mapping[str, dict[str, Any]] = {
    "--data": {"metavar": "NAME", "help": "fashion-mnist, synthetic or random"},
    "--images": {"type": int, "metavar": "N", "help": "the first N of the data"},
    "--batch": {"type": int, "metavar": "B", "help": "images in a run"},
    "--device": {"metavar": "D", "help": "cuda or cpu"},
    "--only": {"metavar": "REGEX", "help": "swap the nodes whose name matches"},
    "--fuse": {
        "action": "store_true",
        "help": "fuse Convs with the bias, batch normalisation, residual, activation, pooling behind them, "
        "and 1x1 Convs a depthwise one in front",
    },
    "--runs": {"type": int, "metavar": "N", "help": "recorded runs of each side; default: 20"},
    # Which `input_shape` reads.
    "--input-shape": {
        "action": "append",
        "metavar": "[INPUT=]C,H,W",
        "help": "the shape of one sample where the model leaves it open; again for further inputs",
    },
}


def add_common(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add those of the options that commands share."""
    for name in names:
        parser.add_argument(name, **_COMMON[name])


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL."""
    # An action of argparse has no such attribute; argcomplete looks for it.
    model: Any = parser.add_argument("model", metavar="MODEL", help="a network's name or an ONNX file")
    model.completer = names_or_files(network_names)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add what commands take that plan a model for a device."""
    add_model(parser)
    add_common(parser, "--batch", "--input-shape", "--device")
    add_kernel_options(parser)
    add_common(parser, "--fuse")
    add_inputs(parser)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add --inputs and how images become numbers, which `given_inputs` reads, and --op-library."""
    feeding = parser.add_argument_group("feeding")
    feeding.add_argument(
        "--inputs",
        metavar="FILE.npz|FOLDER",
        help="arrays by the names of the inputs; a folder of NAME.npy, or of images for one image input: "
        "upright by their EXIF orientation, an alpha channel left out",
    )
    feeding.add_argument("--mean", metavar="M,...", help="of images: (scale pixel - mean) / std; default: 0")
    feeding.add_argument("--std", metavar="S,...", help="one number, or one for each channel; default: 1")
    feeding.add_argument("--scale", type=float, metavar="F", help="default: 1/255, for whole numbers 1")
    feeding.add_argument(
        "--op-library",
        dest="op_libraries",
        action="append",
        default=[],
        metavar="FILE",
        help="custom ops of others that the model needs; again for further ones",
    )


def add_results(parser: argparse.ArgumentParser, **helps: str) -> None:
    """Add an option for each file that a command may write, `json` for --json, as the group "results"."""
    results = parser.add_argument_group("results")
    for name, text in helps.items():
        results.add_argument(f"--{name}", metavar="FILE", help=text)


def arguments_of(function: Callable[..., object], options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `function` that a command has options for, which are called as its parameters.

    Those that the user left out are left to the function. What several commands read from text is read here.
    """
    read = {"input_shape": input_shape, "inputs": given_inputs, "compute_capability": _capability}
    given = {name: getattr(options, name, None) for name in inspect.signature(function).parameters}
    arguments = {
        name: read[name](options) if name in read and hasattr(options, name) else value
        for name, value in given.items()
    }
    return {name: value for name, value in arguments.items() if value is not None}


def given_inputs(options: argparse.Namespace) -> InputData | None:
    """Return what --inputs, --mean, --std and --scale say; None where none is there."""
    how = {"--mean": options.mean, "--std": options.std, "--scale": options.scale}
    if options.inputs is None:
        for option, value in how.items():
            if value is not None:
                raise ConvswapError(f"{option} has no meaning without --inputs and a folder of images")
        return None
    # Imported here, since a parser alone needs no NumPy.
    from convswap.inputs.user_inputs import InputData

    usual = InputData(options.inputs)
    return InputData(
        options.inputs,
        usual.mean if options.mean is None else _numbers("--mean", options.mean),
        usual.std if options.std is None else _numbers("--std", options.std),
        options.scale,
    )


def _numbers(option: str, text: str) -> tuple[float, ...]:
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
    """Return [3, 224, 224] for "3,224,224" alone, {"x": [3, 224, 224]} for "x=3,224,224" and others."""
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
                f"--input-shape {text!r} is one too many; give each input's once, as in x=3,224,224 where "
                "there are several"
            )
        shapes[name] = [int(number) for number in match[2].split(",")]
    return shapes.get("", shapes or None)


def capability(text: str) -> int:
    """Return 90 for "9.0" and for "90"."""
    from convswap.runtime.cards import as_capability

    return as_capability(text, "--compute-capability")


def _capability(options: argparse.Namespace) -> int | None:
    return None if options.compute_capability is None else capability(options.compute_capability)


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


def refuse_beside(option: str, given: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> None:
    """Refuse what `option` would ignore: what is `given` and not as `usual`, which is None by default."""
    for name, value in given.items():
        if value != (usual or {}).get(name):
            raise ConvswapError(f"{name} has no meaning beside {option}; leave one of them out")
