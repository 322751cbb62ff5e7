"""Exports a PyTorch module as an ONNX model, with PyTorch's exporter (`torch.onnx.export`, dynamo)."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from convswap.errors import ConvswapError, root_cause, unknown_name
from convswap.export.builder import INPUT, IR_VERSION, OPSET

SEED = 0
# Height and width of the images of most published networks.
DEFAULT_IMAGE_SIZE = 224
OUTPUT = "output"
# PyTorch's exporter would treat a dimension of size 1 as fixed.
EXAMPLE_BATCH = 2


def export_torch(target: str, input_shape: Sequence[int] | None = None) -> onnx.ModelProto:
    """Return the PyTorch module that `target` names as an ONNX model: opset 20, IR 9, a symbolic batch.

    `target` is "MODULE:NAME" or the name of a torchvision model, which gets seeded weights. MODULE can be
    imported, also from the current folder. NAME in it is a `torch.nn.Module`, or a class or function that
    returns one when it is called without arguments, after `torch.manual_seed(0)`. The module is exported in
    evaluation mode.

    The input `image` is [batch, *input_shape] with the element type of the parameters. By default it has the
    channels of the first `Conv2d` and 224x224 pixels. A single output tensor is called `output`.

    Raises ConvswapError if PyTorch is not installed, the target is not found, or it cannot be made, run or
    exported with a symbolic batch. The message has the reason from PyTorch or the module.
    """
    torch = _import_torch()
    with _current_folder_importable(), contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = _make_module(torch, target).eval().cpu()
        shape = tuple(input_shape) if input_shape is not None else _default_shape(torch, module, target)
        kinds = [parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()]
        example = torch.zeros((EXAMPLE_BATCH, *shape), dtype=kinds[0] if kinds else torch.float32)
        program = _export(torch, module, example, target)
    if isinstance(program.model.graph.inputs[0].shape[0], int):
        raise ConvswapError(
            f"{target!r} runs on batches of one size only, for it does not export for others than the "
            f"{EXAMPLE_BATCH} samples it was tried with; let it take the batch from its input's shape"
        )
    return _clean_model(program.model, target)


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ConvswapError(
            "exporting a PyTorch module needs PyTorch, which is not installed: in convswap's folder, "
            "pip install '.[torch]'"
        ) from error


@contextlib.contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Put the current folder on the module path, which an installed command does not have there."""
    current_folder = str(Path.cwd())
    sys.path.insert(0, current_folder)
    try:
        yield
    finally:
        sys.path.remove(current_folder)


def _make_module(torch: Any, target: str) -> Any:
    """Return the module of `target`, made with seeded random numbers."""
    with torch.random.fork_rng(devices=[]), _errors_with_reason(f"cannot make {target!r}"):
        torch.manual_seed(SEED)
        if ":" not in target:
            return _torchvision_model(target)
        value = _find(target)
        # Seeded again, because code that the import runs may draw random numbers too.
        torch.manual_seed(SEED)
        made = value if isinstance(value, torch.nn.Module) or not callable(value) else value()
    if not isinstance(made, torch.nn.Module):
        raise ConvswapError(
            f"{target!r} is a {type(made).__name__}; expected a torch.nn.Module, or a class or function that "
            "gives one"
        )
    return made


def _find(target: str) -> Any:
    module_name, _, name = target.partition(":")
    value: Any = importlib.import_module(module_name)
    for part in name.split("."):
        if not hasattr(value, part):
            raise unknown_name(
                f"name in {module_name}:", name, [known for known in dir(value) if not known.startswith("_")]
            )
        value = getattr(value, part)
    return value


def _torchvision_model(name: str) -> Any:
    try:
        models = importlib.import_module("torchvision.models")
    except ImportError as error:
        raise ConvswapError(
            f"{name!r} is not of the form MODULE:NAME, and torchvision, which might know a model of that "
            "name, is not installed: pip install torchvision"
        ) from error
    known = models.list_models(module=models)
    if name not in known:
        raise unknown_name("torchvision model", name, known)
    return models.get_model(name, weights=None)


def _default_shape(torch: Any, module: Any, target: str) -> tuple[int, ...]:
    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d):
            return (part.in_channels, DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    raise ConvswapError(
        f"{target!r} has no Conv2d that would tell what it takes; give the shape of one sample, as in "
        "--input-shape 3,224,224"
    )


def _export(torch: Any, module: Any, example: Any, target: str) -> Any:
    shape = ",".join(map(str, example.shape[1:]))
    advice = "give the shape of one sample with --input-shape"
    with (
        _errors_with_reason(f"{target!r} cannot be run on samples of shape {shape}", advice),
        torch.no_grad(),
    ):
        result = module(example)
    with _errors_with_reason(f"PyTorch cannot export {target!r}"), _silence():
        return torch.onnx.export(
            module,
            (example,),
            input_names=[INPUT],
            output_names=[OUTPUT] if isinstance(result, torch.Tensor) else None,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hide PyTorch's log and output about a graph. PyTorch raises an error for real problems."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _errors_with_reason(what: str, advice: str = "") -> Iterator[None]:
    """Turn any error of the user's code or PyTorch into a ConvswapError that begins with `what`."""
    try:
        yield
    except ConvswapError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{what}: {type(error).__name__}: {root_cause(error)}"
        raise ConvswapError(f"{reason}; {advice}" if advice else reason) from error


def _clean_model(model: ir.Model, target: str) -> onnx.ModelProto:
    """Return `model` in IR 9, without the exporter's metadata.

    The metadata name files of this machine, and IR 9 has no fields for them.
    """
    model.ir_version = IR_VERSION
    model.graph.name = target
    for graph in (*model.graphs(), *(function.graph for function in model.functions.values())):
        graph.metadata_props.clear()
        for value in (*graph.inputs, *graph.initializers.values()):
            value.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
    model.metadata_props.clear()
    model.metadata_props["convswap.network"] = target
    return ir.to_proto(model)
