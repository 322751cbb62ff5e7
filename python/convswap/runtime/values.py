"""What sessions are fed and give, beyond arrays of numbers that NumPy has itself.

ONNX Runtime's Python makes no array of bfloat16, 8-bit floating point and 4-bit integers, or one of their
bits, and takes none of them, nor of strings. Sequences, optionals and maps are taken apart into arrays with
names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper, numpy_helper

# What `numpy.dtype.isbuiltin` is for types that a package of its own adds to NumPy.
_ADDED_BY_OTHERS = 2
_FLOATS = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1")
_WHOLE = ("INT4", "UINT4", "INT2", "UINT2")
# As ONNX Runtime writes the types; which of them there are depends on the version of onnx-ir.
_TYPES = {
    f"tensor({name.lower()})": ir.DataType[name]
    for name in (*_FLOATS, *_WHOLE)
    if name in ir.DataType.__members__
}

Arrays = dict[str, np.ndarray]


def are_bits(type_text: str) -> bool:
    """Return whether NumPy has no type for the elements of `type_text`, such as "tensor(bfloat16)"."""
    return type_text in _TYPES


def onnx_type(type_text: str) -> int:
    """Return ONNX's number of the element type in `type_text`, for which `are_bits` holds."""
    return int(_TYPES[type_text])


def array_from_bits(value: onnxruntime.OrtValue) -> np.ndarray:
    """Return the elements of `value`, a tensor in the memory of the host for which `are_bits` holds.

    They are in the type that onnx-ir has for them, such as bfloat16, which a run can be fed; see `widened`.
    """
    element_type, shape = _TYPES[value.data_type()], value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    # Elements of less than a byte share bytes.
    size = -(-count * element_type.bitwidth // 8)
    tensor = onnx.TensorProto(
        data_type=int(element_type),
        dims=shape,
        raw_data=ctypes.string_at(value.data_ptr(), size) if size else b"",
    )
    array: np.ndarray = ir.TensorProtoTensor(tensor).numpy()
    return array


def takes_no_array(array: np.ndarray) -> bool:
    """Return whether a value cannot be made of `array` by ONNX Runtime's own means."""
    return array.dtype.kind in "OSU" or not is_numpys(array.dtype)


def contiguous(array: np.ndarray) -> np.ndarray:
    """Return `array` in the order of C; a scalar stays one, unlike with `np.ascontiguousarray`."""
    return np.asarray(array, order="C")


def host_value(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return `array`, for which `takes_no_array` holds, as a value in the memory of the host.

    It may be on the memory of `array` itself, which is contiguous and must outlive it.
    """
    if array.dtype.kind in "OSU":
        return _strings(array)
    element_type = ir.DataType.from_numpy(array.dtype)
    if element_type.bitwidth >= 8:
        # NumPy has no such type of its own, so that ONNX Runtime takes the bits.
        bits = array.view(f"u{array.dtype.itemsize}")
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(element_type))
    packed = ir.Tensor(array).tobytes()
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), int(element_type))
    ctypes.memmove(value.data_ptr(), packed, len(packed))
    return value


def run_feeds(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | onnxruntime.OrtValue]:
    """Return `feeds` as `InferenceSession.run` takes them, which takes arrays of strings too."""
    return {
        name: values if is_numpys(values.dtype) else host_value(contiguous(values))
        for name, values in feeds.items()
    }


def _strings(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return the one output of a model that has the strings in it: it is all that gives a value of them."""
    tensor = numpy_helper.from_array(array.astype(object), "strings")
    output = helper.make_tensor_value_info("y", onnx.TensorProto.STRING, array.shape)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["strings"], ["y"])], "strings", [], [output], [tensor]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    return value


def named_arrays(names: Sequence[str], outputs: Sequence[object]) -> Arrays:
    """Return the arrays in `outputs`, called `names`; an absent optional is an array of one None.

    A sequence gives an array for each element, `y[0]`, `y[1]`, ...; a map one of its keys and one of its
    values, `y.keys` and `y.values`, in the order of the keys. A sequence of maps, which a classifier gives
    for a batch, is two arrays as well: the keys of all maps, and the values. Numbers of types that NumPy has
    not itself are in a wider one.
    """
    return {
        name: values
        for output, held in zip(names, outputs, strict=True)
        for name, values in _arrays(output, held)
    }


def is_number(values: np.ndarray) -> bool:
    """Return whether `values` are truth values or numbers of a type that NumPy has itself."""
    return values.dtype.kind in "biuf"


def is_floating(values: np.ndarray) -> bool:
    """Return whether `values` are floating-point numbers of a type that NumPy has itself."""
    return values.dtype.kind == "f"


def _arrays(name: str, held: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(held, Mapping):
        yield from _map_arrays(name, [held])
    elif isinstance(held, (list, tuple)):
        if held and all(isinstance(item, Mapping) for item in held):
            yield from _map_arrays(name, held)
            return
        for index, item in enumerate(held):
            yield from _arrays(f"{name}[{index}]", item)
    elif held is None or isinstance(held, (str, bytes)):
        yield name, np.array(held, dtype=object)
    elif isinstance(held, (np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(held)
        # Of strings NumPy has types of fixed lengths, which differ where the strings do.
        yield name, array.astype(object) if array.dtype.kind in "SU" else widened(array)


def _map_arrays(name: str, maps: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[str, np.ndarray]]:
    entries = [entry for one in maps for entry in sorted(one.items(), key=lambda entry: entry[0])]
    yield from _arrays(f"{name}.keys", np.array([key for key, _ in entries]))
    values = [value for _, value in entries]
    if all(np.ndim(value) == 0 for value in values):
        yield from _arrays(f"{name}.values", np.array(values))
    else:
        yield from _arrays(f"{name}.values", values)


def is_numpys(dtype: np.dtype) -> bool:
    """Return whether NumPy has `dtype` itself; bfloat16 and numbers of 8 and 4 bits a package adds to it."""
    return dtype.isbuiltin != _ADDED_BY_OTHERS


def widened(values: np.ndarray) -> np.ndarray:
    """Return `values` in a type that NumPy has itself and that holds them exactly."""
    if is_numpys(values.dtype):
        return values
    return values.astype(np.int8 if "int" in values.dtype.name else np.float32)
