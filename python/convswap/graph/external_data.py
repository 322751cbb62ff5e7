"""Weights in files of their own beside a model: checked before they are read, and written aligned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx_ir as ir

from convswap.errors import ConvswapError, root_cause
from convswap.graph.names import nodes_of

# Where tensors begin in data files: on a page, where every version of ONNX Runtime can map them, or, the
# smaller ones, on a cache line.
_PAGE_BYTES = 4096
_CACHE_LINE_BYTES = 64
_LARGE_TENSOR_BYTES = 1024 * 1024


class LinkedTensor(ir.ExternalTensor):
    """An external tensor whose file onnx-ir refuses: a link out of the model's folder, or a hard link.

    onnx-ir checks nothing where it is told no folder; `follow_links` has said that `file` is sound.
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
        """The data file itself, behind all links."""
        return self._file


def follow_links(model: ir.Model, file: Path) -> None:
    """Let the external tensors of `model`, read from `file`, be read through links that lead beside it.

    As in ONNX Runtime, data lie in the folder that the model is opened in, or in that of the file which a
    link of the model's name leads to: a Hugging Face cache has links to both in `snapshots`, and the files
    side by side in `blobs`. A file of several names (hard links) is read like any other: package managers
    keep files of packages so. Other tensors, absolute locations among them, stay as they are.
    """
    opened_in, beside = _real(file.parent), _real(file).parent

    def followed(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor) or Path(tensor.location).is_absolute():
            return tensor
        target = _real(Path(tensor.path))
        if target.is_relative_to(opened_in):
            return LinkedTensor(tensor, target) if _has_several_names(target) else tensor
        return LinkedTensor(tensor, target) if target.is_relative_to(beside) else tensor

    _replace_tensors(model, (*model.graphs(), *function_graphs(model)), followed)


def _real(path: Path) -> Path:
    # Not Path.resolve, which raises where links lead in a circle: such a file is missing.
    return Path(os.path.realpath(path))


def _has_several_names(file: Path) -> bool:
    try:
        return file.stat().st_nlink > 1
    except OSError:
        # That it is missing, `check_external_data` says.
        return False


def write_tensors(data: Path, tensors: Iterable[ir.TensorProtocol]) -> list[ir.ExternalTensor]:
    """Write `tensors` one after the other to the file `data`; return where each of them is.

    onnx-ir aligns no tensor of less than 1 MiB, and packs densely: one of an odd length would leave the next
    ones at addresses where their elements may not begin.
    """
    there = []
    with data.open("wb") as file:
        for tensor in tensors:
            alignment = _PAGE_BYTES if tensor.nbytes >= _LARGE_TENSOR_BYTES else _CACHE_LINE_BYTES
            offset = -(-file.tell() // alignment) * alignment
            # The bytes between are zeros.
            file.seek(offset)
            if isinstance(tensor, (ir.Tensor, ir.ExternalTensor)):
                # Without a copy in memory.
                tensor.tofile(file)
            else:
                file.write(tensor.tobytes())
            there.append(
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
        # Up to the last of them, where it has no elements.
        file.truncate()
    return there


def check_external_data(model: ir.Model, file: Path) -> None:
    """Raise ConvswapError where external data of `model` are missing, too short or not where they may be.

    `file` is what the model was read from.
    """
    checked: set[str] = set()
    for tensor in external_tensors(model):
        data = Path(tensor.path)
        if not data.is_file():
            raise ConvswapError(
                f"'{file}' keeps tensor {tensor.name!r} in {tensor.location!r}, which is missing; "
                f"put that file beside the model, in '{file.parent}'"
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
    """Map one byte of the tensor's file, so that onnx-ir's rules on where data may lie are applied now."""
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


def read_what_cannot_be_written_back(model: ir.Model) -> None:
    """Bring external tensors outside graph initializers into memory: onnx-ir writes no others back."""
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
        old = _tensors_of(attribute)
        new = [replacement(tensor) for tensor in old]
        if all(own is other for own, other in zip(old, new, strict=True)):
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, new[0])
        else:
            node.attributes[attribute.name] = ir.AttrTensors(attribute.name, new)


def _tensors_of(attribute: ir.Attr) -> list[ir.TensorProtocol]:
    return [attribute.value] if attribute.type == ir.AttributeType.TENSOR else list(attribute.value)


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
    return tensor


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield the tensors of `model` that are in data files: initializers, and those in attributes of nodes."""
    for tensor in initializers(model):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor
    for _, attribute in _tensor_attributes(model):
        yield from (tensor for tensor in _tensors_of(attribute) if isinstance(tensor, ir.ExternalTensor))


def initializers(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the initializers of every graph of `model`, those in functions included."""
    for graph in (*model.graphs(), *function_graphs(model)):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def function_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the graphs that nodes of functions have, such as the branches of an If."""
    for function in model.functions.values():
        yield from function.subgraphs()


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    kinds = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)
    for node in nodes_of(model):
        for attribute in list(node.attributes.values()):
            if attribute.type in kinds and not attribute.is_ref():
                yield node, attribute
