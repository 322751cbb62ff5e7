"""Load and save ONNX files. Weights stay on disk until needed; files are written completely or not at all."""

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
    load_unwritable_tensors,
    write_tensors,
)
from convswap.graph.file_formats import identify_format, read_head
from convswap.graph.functions import add_placeholder_graphs
from convswap.graph.serialisation import from_proto, to_proto, with_dense_tensors
from convswap.output.files import check_folder_writable, resolve_link

# protobuf rejects messages of 2 GiB or more. The difference is space for the nodes and their names.
LARGEST_INLINE_BYTES = 2_000_000_000

# Tensors up to this size may be shapes or axes, which shape inference reads only from the model file.
_SMALL_TENSOR_BYTES = 256

# onnx and ONNX Runtime store opset versions in 32 bits.
_LARGEST_OPSET = 2**31 - 1

# Errors that onnx, onnx-ir and protobuf raise for an invalid model; they have no common base class.
_INVALID_MODEL_ERRORS = (
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

    External tensors in node attributes and functions, which are rare, are read at once.

    Raises:
        ConvswapError: the path is empty, there is no such file, it is not a regular file, it is not an ONNX
            model, or its external data are missing, too short, or outside the model's folder.
    """
    file = model_path(path)
    if not os.fspath(path):
        raise ConvswapError("the name of the model is empty; expected the path of an ONNX model")
    if not path_exists(file):
        raise ConvswapError(f"no such file: '{file}'; expected the path of an ONNX model")
    if not file.is_file():
        kind = "a directory" if file.is_dir() else "not a regular file"
        raise ConvswapError(f"'{file}' is {kind}; expected the path of an ONNX model")
    try:
        proto = onnx.load_model(file, format="protobuf", load_external_data=False)
    except OSError as error:
        raise ConvswapError(f"cannot read '{file}': {error.strerror or error}") from error
    except _INVALID_MODEL_ERRORS as error:
        kind = _other_format(file) or (
            "it cannot be decoded; check that it is an .onnx file and was copied completely"
        )
        raise ConvswapError(f"'{file}' is not an ONNX model: {kind}") from error
    # A file of another format may decode by chance: no field of a model's protobuf message is required.
    if not proto.HasField("graph") and (other := _other_format(file)):
        raise ConvswapError(f"'{file}' is not an ONNX model: {other}")
    return _with_checked_data(
        model_from_proto(proto, name=f"'{file}'", base_dir=file.absolute().parent), file
    )


def model_from_message(message: onnx.ModelProto) -> ir.Model:
    """Return a message of the user's, whose external data lie in the current folder, as `load_model` does.

    Raises:
        ConvswapError: as for `model_from_proto`, or the external data are missing, too short, or outside the
            current folder.
    """
    return _with_checked_data(model_from_proto(message, base_dir="."), Path("the model"))


def _with_checked_data(model: ir.Model, file: Path) -> ir.Model:
    """Check the external data of `model`, which was read from `file`, and follow links to them."""
    try:
        follow_links(model, file)
        check_external_data(model, file)
        load_unwritable_tensors(model)
    except OSError as error:
        raise ConvswapError(f"cannot read the external data of '{file}': {root_cause(error)}") from error
    except _INVALID_MODEL_ERRORS as error:
        raise ConvswapError(f"'{file}' is not a valid ONNX model: {root_cause(error)}") from error
    return model


def _other_format(file: Path) -> str | None:
    """Return the format of a file that is no ONNX model; None if its first bytes do not tell."""
    kind = identify_format(read_head(file))
    return None if kind is None else f"it is {kind}"


def not_a_model(model: object, expected: str) -> ConvswapError:
    """Return the error for an argument `model` that has none of the `expected` types."""
    kind = identify_format(read_head(model)) if isinstance(model, bytes) else None
    if kind is not None:
        return ConvswapError(f"the bytes given are no ONNX model: they are {kind}; expected {expected}")
    return ConvswapError(f"an object of type {type(model).__name__} was given; expected {expected}")


def model_path(model: str | os.PathLike[str]) -> Path:
    """Return the path `model` as a Path; raise ConvswapError for another type."""
    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    raise not_a_model(model, "a path, a network's name or an onnx.ModelProto")


def model_files(model: str | os.PathLike[str]) -> list[Path]:
    """Return the ONNX file `model` and its external data files; only `model` if it cannot be read."""
    file = model_path(model)
    # Code that reads the model later reports why it cannot be read.
    with contextlib.suppress(ConvswapError):
        if path_exists(file):
            files = [file, *sorted({Path(tensor.path) for tensor in external_tensors(load_model(file))})]
            # A model has reference cycles: without a collection its weights would stay in memory.
            gc.collect()
            return files
    return [file]


def path_exists(file: Path) -> bool:
    """Return whether `file` exists, as a file of any kind.

    Raises ConvswapError if the system cannot tell, such as for a name that is too long.
    """
    try:
        return file.exists()
    except OSError as error:
        raise ConvswapError(f"cannot read '{file}': {error.strerror}") from None


def model_from_proto(
    proto: onnx.ModelProto, *, name: str = "the model", base_dir: str | os.PathLike[str] = ""
) -> ir.Model:
    """Return `proto` as an `onnx_ir.Model` that shares its tensors.

    `name` is the model's name in messages. `base_dir` is the folder of external data; an empty string means
    the current folder. Nodes are sorted topologically. Training information is dropped, since inference does
    not use it. Sparse tensors become dense ones.

    Raises:
        ConvswapError: the model has no graph or no opset, is inconsistent, or has a sparse tensor that cannot
            be made dense; see `with_dense_tensors`.
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
        add_placeholder_graphs(model)
        for tensor in external_tensors(model):
            tensor.base_dir = str(base_dir)
        fault = _find_fault(model)
        if fault is None:
            # ONNX Runtime accepts nodes in any order, but shape inference needs topological order.
            model.graph.sort()
    except _INVALID_MODEL_ERRORS as error:
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

    Files are written to a temporary folder beside the target and moved when complete. Files that `model` was
    read from (`source`, and the data files of its external tensors) are overwritten only with `force`; any
    other existing file is replaced. If `path` is a symbolic link, its target is written. With a data file the
    link itself is replaced, because ONNX Runtime looks for the data file beside the path that it opens.
    Strings, and tensors of at most 256 bytes, stay in the model file unless they are external already.

    Raises:
        ConvswapError: the target is one of the model's own files, is no regular file, has no folder, cannot
            be written, or the model cannot be serialised.
    """
    target = as_path(path, "the path of an .onnx file to write")
    try:
        external = _needs_external_data(model)
    except _INVALID_MODEL_ERRORS as error:
        raise _invalid_model_error(target, error) from error
    target, data_target = check_model_target(path, external=external)
    if not force:
        source_files = [Path(tensor.path) for tensor in external_tensors(model)]
        written = [target, data_target] if external else [target]
        _refuse_to_overwrite(written, [*source_files, Path(source)] if source is not None else source_files)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convswap-") as folder:
            part = Path(folder) / target.name
            data_part = Path(folder) / data_target.name
            weights = _weights_in_file(data_part, model) if external else contextlib.nullcontext()
            with weights:
                onnx.save_model(to_proto(model), part, format="protobuf")
            if external:
                data_part.replace(data_target)
            part.replace(target)
    except OSError as error:
        raise ConvswapError(f"cannot write '{target}': {root_cause(error)}") from error
    except _INVALID_MODEL_ERRORS as error:
        raise _invalid_model_error(target, error) from error


def _invalid_model_error(target: Path, error: Exception) -> ConvswapError:
    return ConvswapError(f"cannot write '{target}': the model is not sound: {root_cause(error)}")


def check_model_target(path: str | os.PathLike[str], *, external: bool = False) -> tuple[Path, Path]:
    """Return the model file and the data file that saving a model to `path` writes.

    The data file is written only with `external`, that is, if the model has external data.

    Raises:
        ConvswapError: one of them exists and is no regular file, or the folder is missing or not writable.
    """
    target = as_path(path, "the path of an .onnx file to write")
    data_target = target.with_name(f"{target.name}.data") if target.name else target
    try:
        target = target if external else resolve_link(target)
        for file in [target, data_target] if external else [target]:
            if file.exists() and not file.is_file():
                kind = "a directory" if file.is_dir() else "not a regular file"
                raise ConvswapError(f"cannot write to '{file}': it is {kind}; give the path of an .onnx file")
        if not target.parent.is_dir():
            raise ConvswapError(
                f"cannot write '{target}': there is no folder '{target.parent}'; make it first"
            )
    except OSError as error:  # such as a name that is too long
        raise ConvswapError(f"cannot write '{target}': {error.strerror}") from None
    check_folder_writable(target, target.parent)
    return target, data_target


@contextlib.contextmanager
def _weights_in_file(data: Path, model: ir.Model) -> Iterator[None]:
    """Write the weights of `model` to `data`, and let the model refer to that file within the context.

    onnx-ir's own function for this does not accept tensors of strings.
    """
    originals = {
        value: value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and _belongs_in_data_file(value.const_value)
    }
    external = write_tensors(data, [tensor for tensor in originals.values() if tensor is not None])
    try:
        for value, external_tensor in zip(originals, external, strict=True):
            value.const_value = external_tensor
        yield
    finally:
        for value, tensor in originals.items():
            value.const_value = tensor


def _belongs_in_data_file(tensor: ir.TensorProtocol) -> bool:
    if isinstance(tensor, ir.ExternalTensor):
        return True
    return tensor.dtype != ir.DataType.STRING and tensor.nbytes > _SMALL_TENSOR_BYTES


def _find_fault(model: ir.Model) -> str | None:
    """Return why the decoded `model` is invalid, or None if no fault was found."""
    for opsets in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain, version in opsets.items():
            if not 0 <= version <= _LARGEST_OPSET:
                return f"it imports opset {version} of domain {domain!r}"
    for tensor in initializers(model):
        if tensor.dtype == ir.DataType.UNDEFINED or tensor.nbytes < 0:
            return f"tensor {tensor.name!r} has no element type, or a negative size"
        if isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype != ir.DataType.STRING:
            stored = _bytes_in(tensor.raw, tensor.dtype)
            if stored != tensor.nbytes:
                return f"tensor {tensor.name!r} takes {tensor.nbytes} bytes, and {stored} are there"
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
    """Return how many bytes of elements `proto` has, in whichever field they are stored."""
    if proto.HasField("raw_data"):
        return len(proto.raw_data)
    # A complex element takes two entries. Elements of 2 and 4 bits are packed, one byte per entry; an element
    # of 6 bits has an entry of its own.
    entry_bits = max(8, element_type.bitwidth) if element_type.bitwidth != 6 else 6
    return (
        4 * len(proto.float_data)
        + 8 * (len(proto.double_data) + len(proto.int64_data))
        + -(-entry_bits * (len(proto.int32_data) + len(proto.uint64_data)) // 8)
    )


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _refuse_to_overwrite(written: Iterable[Path], source_files: Iterable[Path]) -> None:
    existing = [file for file in dict.fromkeys(source_files) if file.exists()]
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
