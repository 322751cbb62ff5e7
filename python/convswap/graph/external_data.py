"""External data of ONNX models: files checked before they are read, and tensors written aligned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx_ir as ir

from convswap.errors import ConvswapError, root_cause
from convswap.graph.names import nodes_of

# Alignment of tensors in data files. Large tensors begin on a page, so that every version of ONNX Runtime can
# map them into memory; smaller tensors begin on a cache line.
_PAGE_BYTES = 4096
_CACHE_LINE_BYTES = 64
_LARGE_TENSOR_BYTES = 1024 * 1024


class LinkedTensor(ir.ExternalTensor):
    """An external tensor in a file that onnx-ir rejects: a link out of the model's folder, or a hard link.

    An empty `base_dir` turns off onnx-ir's checks. `follow_links` has checked `file` instead.
    """

    __slots__ = ("_file",)

    def __init__(self, tensor: ir.ExternalTensor, file: Path) -> None:
        super().__init__(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=tensor.metadata_props,
            base_dir="",
        )
        self._file = str(file)

    @property
    def path(self) -> str:
        """The data file, with all links resolved."""
        return self._file


def follow_links(model: ir.Model, file: Path) -> None:
    """Resolve links to the data files of `model`, read from `file`, so that onnx-ir reads the files.

    As in ONNX Runtime, data files lie in the model's folder, or in the folder of the file that a symbolic
    link `file` points to. A Hugging Face cache has links to model and data in `snapshots`, and both files in
    `blobs`. Files with several hard links are accepted: package managers store files of packages this way.
    Tensors with other locations, such as absolute paths, stay as they are.
    """
    model_folder, target_folder = _real_path(file.parent), _real_path(file).parent

    def resolve(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor) or Path(tensor.location).is_absolute():
            return tensor
        target = _real_path(Path(tensor.path))
        if target.is_relative_to(model_folder):
            return LinkedTensor(tensor, target) if _has_hard_links(target) else tensor
        return LinkedTensor(tensor, target) if target.is_relative_to(target_folder) else tensor

    _replace_tensors(model, (*model.graphs(), *function_graphs(model)), resolve)


def _real_path(path: Path) -> Path:
    # Path.resolve would raise for a circle of links; here such a file counts as missing.
    return Path(os.path.realpath(path))


def _has_hard_links(file: Path) -> bool:
    try:
        return file.stat().st_nlink > 1
    except OSError:
        # `check_external_data` reports missing files.
        return False


def write_tensors(data: Path, tensors: Iterable[ir.TensorProtocol]) -> list[ir.ExternalTensor]:
    """Write `tensors` one after the other to the file `data`; return them as external tensors.

    onnx-ir's own writer aligns no tensor of less than 1 MiB. After a tensor of odd length, its next tensors
    would be misaligned for their element type.
    """
    written = []
    with data.open("wb") as file:
        for tensor in tensors:
            alignment = _PAGE_BYTES if tensor.nbytes >= _LARGE_TENSOR_BYTES else _CACHE_LINE_BYTES
            offset = -(-file.tell() // alignment) * alignment
            # The operating system fills the gap with zeros.
            file.seek(offset)
            if isinstance(tensor, (ir.Tensor, ir.ExternalTensor)):
                # Needs no copy in memory.
                tensor.tofile(file)
            else:
                file.write(tensor.tobytes())
            written.append(
                ir.ExternalTensor(
                    data.name,
                    offset,
                    tensor.nbytes,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=tensor.name or "",
                    doc_string=tensor.doc_string,
                    metadata_props=dict(tensor.metadata_props),
                    base_dir=data.parent,
                )
            )
        # Extends the file to the offset of a last tensor without elements.
        file.truncate()
    return written


def check_external_data(model: ir.Model, file: Path) -> None:
    """Raise ConvswapError if external data of `model` are missing, too short or in a forbidden place.

    `file` is the file that the model was read from.
    """
    checked: set[str] = set()
    for tensor in external_tensors(model):
        data = Path(tensor.path)
        if not data.is_file():
            location = Path(tensor.location)
            is_inside = not location.is_absolute() and ".." not in location.parts
            raise ConvswapError(
                f"'{file}' keeps tensor {tensor.name!r} in {tensor.location!r}, which is missing; "
                + (
                    f"expected the file {str(data)!r}"
                    if is_inside
                    else f"expected a file in the model's folder, '{file.parent}', or in a folder below it: "
                    "save the model with its data there"
                )
            )
        offset = tensor.offset or 0
        if tensor.length not in (None, tensor.nbytes) or offset < 0:
            raise ConvswapError(
                f"'{file}' is not a valid ONNX model: tensor {tensor.name!r} takes {tensor.nbytes} bytes, "
                f"but its external data are given as {tensor.length} at offset {offset}"
            )
        size = data.stat().st_size
        if offset + tensor.nbytes > size:
            raise ConvswapError(
                f"'{data}' is too short: it has {size} bytes, and tensor {tensor.name!r} of '{file.name}' "
                f"ends at {offset + tensor.nbytes}; check that it was copied completely"
            )
        if tensor.path not in checked and size > 0:
            _check_readable(tensor, file)
            checked.add(tensor.path)


def _check_readable(tensor: ir.ExternalTensor, file: Path) -> None:
    """Map one byte of the tensor's file, so that onnx-ir checks now whether data may lie there."""
    first_byte = ir.ExternalTensor(
        tensor.location, 0, 1, ir.DataType.UINT8, shape=ir.Shape([1]), name="byte", base_dir=tensor.base_dir
    )
    if isinstance(tensor, LinkedTensor):
        first_byte = LinkedTensor(first_byte, Path(tensor.path))
    try:
        first_byte.numpy()
    except (OSError, ValueError) as error:
        raise ConvswapError(
            f"cannot read the external data of '{file}': {root_cause(error)} "
            "Put a plain copy of the data file beside the model."
        ) from error


def load_unwritable_tensors(model: ir.Model) -> None:
    """Load external tensors of attributes and functions into memory, since onnx-ir cannot write them back."""
    _replace_tensors(model, function_graphs(model), _in_memory)


def _replace_tensors(
    model: ir.Model, graphs: Iterable[ir.Graph], replacement: Callable[[ir.TensorProtocol], ir.TensorProtocol]
) -> None:
    """Replace the initializers of `graphs`, and the tensors in attributes of all nodes of `model`."""
    for graph in graphs:
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = replacement(value.const_value)
    for node, attribute in _tensor_attributes(model):
        old_tensors = _tensors_of(attribute)
        new_tensors = [replacement(tensor) for tensor in old_tensors]
        if all(
            old_tensor is new_tensor for old_tensor, new_tensor in zip(old_tensors, new_tensors, strict=True)
        ):
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, new_tensors[0])
        else:
            node.attributes[attribute.name] = ir.AttrTensors(attribute.name, new_tensors)


def _tensors_of(attribute: ir.Attr) -> list[ir.TensorProtocol]:
    return [attribute.value] if attribute.type == ir.AttributeType.TENSOR else list(attribute.value)


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
    return tensor


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield the external tensors of `model`: initializers and tensors in attributes of nodes."""
    for tensor in initializers(model):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor
    for _, attribute in _tensor_attributes(model):
        yield from (tensor for tensor in _tensors_of(attribute) if isinstance(tensor, ir.ExternalTensor))


def initializers(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the initializers of every graph of `model`, also of graphs in functions."""
    for graph in (*model.graphs(), *function_graphs(model)):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def function_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the subgraphs of nodes in functions, such as the branches of an If."""
    for function in model.functions.values():
        yield from function.subgraphs()


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    kinds = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)
    for node in nodes_of(model):
        for attribute in list(node.attributes.values()):
            if attribute.type in kinds and not attribute.is_ref():
                yield node, attribute
