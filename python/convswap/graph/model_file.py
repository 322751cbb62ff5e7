"""Load and save ONNX files: weights stay on disk until needed, and no file is left half written."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from convswap.errors import ConvswapError, as_path, root_cause
from convswap.graph.external_data import (
    check_external_data,
    external_tensors,
    follow_links,
    function_graphs,
    initializers,
    read_what_cannot_be_written_back,
    write_tensors,
)
from convswap.graph.file_formats import head_of, what_else
from convswap.graph.functions import give_references_graphs
from convswap.graph.serialisation import from_proto, to_proto, with_dense_tensors
from convswap.output.files import check_folder, followed

# protobuf refuses messages from 2 GiB on; what is left below that is room for the nodes and their names.
LARGEST_INLINE_BYTES = 2_000_000_000

# Tensors up to this size may be shapes or axes, which shape inference reads from the model file alone.
_SMALL_TENSOR_BYTES = 256

# onnx and ONNX Runtime keep opset versions in 32 bits.
_LARGEST_OPSET = 2**31 - 1

# What onnx, onnx-ir and protobuf raise for content that is not a sound model; no common class says so.
_UNSOUND = (
    DecodeError,
    EncodeError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    UserWarning,
    ValueError,
)


def load_model(path: str | os.PathLike[str]) -> ir.Model:
    """Return the model in the ONNX file at `path`; its external data are mapped into memory, not read.

    External tensors in node attributes and functions, where ONNX files seldom have them, are read at once.

    Raises:
        ConvswapError: the path is empty, there is no such file, it is not a regular file, it is not an ONNX
            model, or its external data are missing, too short, or outside the model's folder.
    """
    file = model_path(path)
    if not os.fspath(path):
        raise ConvswapError("the name of the model is empty; expected the path of an ONNX model")
    if not is_there(file):
        raise ConvswapError(f"no such file: '{file}'; expected the path of an ONNX model")
    if not file.is_file():
        kind = "a directory" if file.is_dir() else "not a regular file"
        raise ConvswapError(f"'{file}' is {kind}; expected the path of an ONNX model")
    try:
        proto = onnx.load_model(file, format="protobuf", load_external_data=False)
    except OSError as error:
        raise ConvswapError(f"cannot read '{file}': {error.strerror or error}") from error
    except _UNSOUND as error:
        kind = _kind_of(file) or (
            "it cannot be decoded; check that it is an .onnx file and was copied completely"
        )
        raise ConvswapError(f"'{file}' is not an ONNX model: {kind}") from error
    # Another format may be decoded by chance: the protobuf message of a model needs no field.
    if not proto.HasField("graph") and (other := _kind_of(file)):
        raise ConvswapError(f"'{file}' is not an ONNX model: {other}")
    model = model_from_proto(proto, name=f"'{file}'", base_dir=file.absolute().parent)
    try:
        follow_links(model, file)
        check_external_data(model, file)
        read_what_cannot_be_written_back(model)
    except OSError as error:
        raise ConvswapError(f"cannot read the external data of '{file}': {root_cause(error)}") from error
    except _UNSOUND as error:
        raise ConvswapError(f"'{file}' is not a valid ONNX model: {root_cause(error)}") from error
    return model


def _kind_of(file: Path) -> str | None:
    """Return what a file that is no ONNX model is, where its first bytes tell."""
    kind = what_else(head_of(file))
    return None if kind is None else f"it is {kind}"


def no_model(given: object, expected: str) -> ConvswapError:
    """Return the error for an argument whose type is none of those that are `expected`."""
    kind = what_else(head_of(given)) if isinstance(given, bytes) else None
    if kind is not None:
        return ConvswapError(f"the bytes given are no ONNX model: they are {kind}; expected {expected}")
    return ConvswapError(f"an object of type {type(given).__name__} was given; expected {expected}")


def model_path(model: str | os.PathLike[str]) -> Path:
    """Return the path of a model that was given by it; raise ConvswapError where something else was given."""
    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    raise no_model(model, "a path, a network's name or an onnx.ModelProto")


def files_of(model: str | os.PathLike[str]) -> list[Path]:
    """Return the ONNX file `model` and those of its external data; the name alone where none can be read."""
    file = model_path(model)
    # Why it cannot be read, whoever reads it says.
    with contextlib.suppress(ConvswapError):
        if is_there(file):
            files = [file, *sorted({Path(tensor.path) for tensor in external_tensors(load_model(file))})]
            # A model refers to itself: its weights would stay in memory until Python looks for such things.
            gc.collect()
            return files
    return [file]


def is_there(file: Path) -> bool:
    """Return whether there is such a file, of any kind.

    Raises ConvswapError where the system cannot look for it, as for a name that is too long.
    """
    try:
        return file.exists()
    except OSError as error:
        raise ConvswapError(f"cannot read '{file}': {error.strerror}") from None


def model_from_proto(
    proto: onnx.ModelProto, *, name: str = "the model", base_dir: str | os.PathLike[str] = ""
) -> ir.Model:
    """Return `proto` as an `onnx_ir.Model` that shares its tensors.

    `name` stands for the model in messages; `base_dir` is the folder that external data lie in, the current
    one when empty. Nodes come before those that read their outputs, wherever they are in `proto`. Training
    information is not carried over: it has no meaning for inference. Sparse tensors become dense ones.

    Raises:
        ConvswapError: it has no graph or no opset, is inconsistent, or has a sparse tensor that cannot be
            made dense; see `with_dense_tensors`.
    """
    if not proto.HasField("graph") or not proto.graph.output:
        raise ConvswapError(
            f"{name} is not an ONNX model: it has no graph with outputs; expected an .onnx file"
        )
    if not proto.opset_import:
        raise ConvswapError(
            f"{name} is not a complete ONNX model: it imports no opset; check that it was copied completely"
        )
    try:
        model = from_proto(with_dense_tensors(proto, name))
        give_references_graphs(model)
        for tensor in external_tensors(model):
            tensor.base_dir = str(base_dir)
        fault = _fault(model)
        if fault is None:
            # ONNX Runtime takes nodes in any order, shape inference only in that of the data.
            model.graph.sort()
    except _UNSOUND as error:
        raise ConvswapError(f"{name} is not a valid ONNX model: {root_cause(error)}") from error
    if fault is not None:
        raise ConvswapError(f"{name} is not a valid ONNX model: {fault}")
    return model


def save_model(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    source: str | os.PathLike[str] | None = None,
) -> None:
    """Write `model` to `path`, and its weights to `<path>.data` if it has external data or exceeds 2 GB.

    Everything is written beside the target first and moved there when complete. Files that `model` was read
    from (`source`, and the data files of its external tensors) are overwritten only with `force`; any other
    existing file is replaced. A link is followed, but replaced where there is a data file: that has to lie
    beside the name that the model is opened by. Strings, and tensors of at most 256 bytes, stay in the model
    file if they are there.

    Raises:
        ConvswapError: the target is one of the model's own files, is no regular file, has no folder, cannot
            be written, or the model cannot be serialised.
    """
    target = as_path(path, "the path of an .onnx file to write")
    try:
        external = _needs_external_data(model)
    except _UNSOUND as error:
        raise _not_sound(target, error) from error
    target, data_target = check_model_target(path, external=external)
    if not force:
        own = [Path(tensor.path) for tensor in external_tensors(model)]
        written = [target, data_target] if external else [target]
        _refuse_to_overwrite(written, [*own, Path(source)] if source is not None else own)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convswap-") as folder:
            part = Path(folder) / target.name
            data_part = Path(folder) / data_target.name
            weights = _weights_moved_to(data_part, model) if external else contextlib.nullcontext()
            with weights:
                onnx.save_model(to_proto(model), part, format="protobuf")
            if external:
                data_part.replace(data_target)
            part.replace(target)
    except OSError as error:
        raise ConvswapError(f"cannot write '{target}': {root_cause(error)}") from error
    except _UNSOUND as error:
        raise _not_sound(target, error) from error


def _not_sound(target: Path, error: Exception) -> ConvswapError:
    return ConvswapError(f"cannot write '{target}': the model is not sound: {root_cause(error)}")


def check_model_target(path: str | os.PathLike[str], *, external: bool = False) -> tuple[Path, Path]:
    """Return the files that a model saved to `path` is written to: its own, and with `external` one of data.

    Raises:
        ConvswapError: one is there and no regular file, or the folder is missing or not writable.
    """
    target = as_path(path, "the path of an .onnx file to write")
    data_target = target.with_name(f"{target.name}.data") if target.name else target
    try:
        target = target if external else followed(target)
        for file in [target, data_target] if external else [target]:
            if file.exists() and not file.is_file():
                kind = "a directory" if file.is_dir() else "not a regular file"
                raise ConvswapError(f"cannot write to '{file}': it is {kind}; give the path of an .onnx file")
        if not target.parent.is_dir():
            raise ConvswapError(
                f"cannot write '{target}': there is no folder '{target.parent}'; make it first"
            )
    except OSError as error:  # a name that is too long, for one
        raise ConvswapError(f"cannot write '{target}': {error.strerror}") from None
    check_folder(target, target.parent)
    return target, data_target


@contextlib.contextmanager
def _weights_moved_to(data: Path, model: ir.Model) -> Iterator[None]:
    """Write the weights of `model` to `data`, and let the model refer to them there for a while.

    onnx-ir's own way to do both does not take tensors of strings.
    """
    moved = {
        value: value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and _belongs_in_data_file(value.const_value)
    }
    there = write_tensors(data, [tensor for tensor in moved.values() if tensor is not None])
    try:
        for value, tensor in zip(moved, there, strict=True):
            value.const_value = tensor
        yield
    finally:
        for value, own in moved.items():
            value.const_value = own


def _belongs_in_data_file(tensor: ir.TensorProtocol) -> bool:
    if isinstance(tensor, ir.ExternalTensor):
        return True
    return tensor.dtype != ir.DataType.STRING and tensor.nbytes > _SMALL_TENSOR_BYTES


def _fault(model: ir.Model) -> str | None:
    """Return what makes `model` unsound though it could be decoded, or None."""
    for opsets in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain, version in opsets.items():
            if not 0 <= version <= _LARGEST_OPSET:
                return f"it imports opset {version} of domain {domain!r}"
    for tensor in initializers(model):
        if tensor.dtype == ir.DataType.UNDEFINED or tensor.nbytes < 0:
            return f"tensor {tensor.name!r} has no element type, or a negative size"
        if isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype != ir.DataType.STRING:
            held = _bytes_in(tensor.raw, tensor.dtype)
            if held != tensor.nbytes:
                return f"tensor {tensor.name!r} takes {tensor.nbytes} bytes, and {held} are there"
    functions = [function.graph for function in model.functions.values()]
    for graph in (*model.graphs(), *functions, *function_graphs(model)):
        for node in graph:
            values = [value for value in (*node.inputs, *node.outputs) if value is not None]
            names = [node.name, *(value.name for value in values)]
            if not all(isinstance(name, str) for name in names):
                return f"a name of a {node.op_type!r} node is not text"
            if not all(isinstance(part, str) and part.isprintable() for part in (node.domain, node.op_type)):
                return f"node {node.name!r} has the op {node.op_type!r} of domain {node.domain!r}"
            for value in values:
                if not _is_defined(value):
                    return f"node {node.name!r} reads {value.name!r}, which nothing produces"
        for value in graph.outputs:
            if not _is_defined(value):
                return f"nothing produces its output {value.name!r}"
    return None


def _bytes_in(proto: onnx.TensorProto, element_type: ir.DataType) -> int:
    """Return how many bytes of elements `proto` holds, in whichever field they are."""
    if proto.HasField("raw_data"):
        return len(proto.raw_data)
    # Complex elements take two entries; those of 2 and 4 bits share entries of a byte, those of 6 do not.
    entry_bits = max(8, element_type.bitwidth) if element_type.bitwidth != 6 else 6
    return (
        4 * len(proto.float_data)
        + 8 * (len(proto.double_data) + len(proto.int64_data))
        + -(-entry_bits * (len(proto.int32_data) + len(proto.uint64_data)) // 8)
    )


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _refuse_to_overwrite(written: Iterable[Path], own: Iterable[Path]) -> None:
    existing = [file for file in dict.fromkeys(own) if file.exists()]
    for target in written:
        for file in existing:
            if target.exists() and target.samefile(file):
                raise ConvswapError(
                    f"'{target}' is a file that the model was read from; "
                    "choose another name, or overwrite it with --force (force=True)"
                )


def _needs_external_data(model: ir.Model) -> bool:
    if any(isinstance(tensor, ir.ExternalTensor) for tensor in initializers(model)):
        return True
    return sum(tensor.nbytes for tensor in initializers(model)) > LARGEST_INLINE_BYTES
