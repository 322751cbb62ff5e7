"""Inputs and outputs of sessions beyond arrays of NumPy's own number types.

ONNX Runtime's Python has no arrays of bfloat16, 8-bit floating point and 4-bit integers: it returns none or
their bits, and accepts none. It accepts no arrays of strings for values either. Sequences, optionals and maps
are split into named arrays.
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

# The value of `numpy.dtype.isbuiltin` for types that other packages add to NumPy.
_USER_DEFINED = 2
_FLOATS = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1")
_WHOLE = ("INT4", "UINT4", "INT2", "UINT2")
# The types by ONNX Runtime's names; older versions of onnx-ir lack some of them.
_TYPES = {
    f"tensor({name.lower()})": ir.DataType[name]
    for name in (*_FLOATS, *_WHOLE)
    if name in ir.DataType.__members__
}

Arrays = dict[str, np.ndarray]
# The inputs of a run, in any memory.
RunFeeds = Mapping[str, np.ndarray | onnxruntime.OrtValue]


def lacks_numpy_type(type_text: str) -> bool:
    """Return whether NumPy has no type for the elements of `type_text`, such as "tensor(bfloat16)"."""
    return type_text in _TYPES


def onnx_type(type_text: str) -> int:
    """Return ONNX's number of the element type in `type_text`, for which `lacks_numpy_type` is true."""
    return int(_TYPES[type_text])


def array_from_bits(value: onnxruntime.OrtValue) -> np.ndarray:
    """Return the elements of `value`, a tensor on the host for whose type `lacks_numpy_type` is true.

    The elements have onnx-ir's type for them, such as bfloat16, which a run accepts; `widened` converts them.
    """
    element_type, shape = _TYPES[value.data_type()], value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    # Elements smaller than a byte are packed.
    size = -(-count * element_type.bitwidth // 8)
    tensor = onnx.TensorProto(
        data_type=int(element_type),
        dims=shape,
        raw_data=ctypes.string_at(value.data_ptr(), size) if size else b"",
    )
    array: np.ndarray = ir.TensorProtoTensor(tensor).numpy()
    return array


def needs_host_value(array: np.ndarray) -> bool:
    """Return whether ONNX Runtime cannot make a value of `array` itself, so that `host_value` is needed."""
    return array.dtype.kind in "OSU" or not is_numpys(array.dtype)


def contiguous(array: np.ndarray) -> np.ndarray:
    """Return `array` in C order; a scalar keeps its rank 0, unlike with `np.ascontiguousarray`."""
    return np.asarray(array, order="C")


def host_value(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return `array`, for which `needs_host_value` is true, as a value in the memory of the host.

    The value may use the memory of `array`, which is contiguous and must outlive the value.
    """
    if array.dtype.kind in "OSU":
        return _strings(array)
    element_type = ir.DataType.from_numpy(array.dtype)
    if element_type.bitwidth >= 8:
        # NumPy has no such type itself, so ONNX Runtime gets the bits.
        bits = array.view(f"u{array.dtype.itemsize}")
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(element_type))
    packed = ir.Tensor(array).tobytes()
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), int(element_type))
    ctypes.memmove(value.data_ptr(), packed, len(packed))
    return value


def run_feeds(feeds: RunFeeds) -> dict[str, np.ndarray | onnxruntime.OrtValue]:
    """Return `feeds` as `InferenceSession.run` accepts them, which accepts arrays of strings too."""
    return {
        name: host_value(contiguous(values))
        if isinstance(values, np.ndarray) and not is_numpys(values.dtype)
        else values
        for name, values in feeds.items()
    }


def _strings(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return a value with the strings of `array`: the output of a model that has them as a constant.

    ONNX Runtime's Python has no other way to make a value of strings.
    """
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
    """Return the arrays in `outputs`, which have the names `names`, by name.

    A sequence becomes an array for each element, `y[0]`, `y[1]`, ...; a map becomes an array of its keys and
    an array of its values, `y.keys` and `y.values`, in the order of the keys. A sequence of maps, which a
    classifier returns for a batch, becomes two arrays as well: the keys of all maps, and the values. An
    absent optional becomes an array of one None. Numbers of types that NumPy does not have itself are
    widened.
    """
    return {
        name: values
        for output_name, output in zip(names, outputs, strict=True)
        for name, values in _arrays_of_output(output_name, output)
    }


def is_number(values: np.ndarray) -> bool:
    """Return whether `values` are booleans or numbers of a type that NumPy has itself."""
    return values.dtype.kind in "biuf"


def is_floating(values: np.ndarray) -> bool:
    """Return whether `values` are floating-point numbers of a type that NumPy has itself."""
    return values.dtype.kind == "f"


def _arrays_of_output(name: str, output: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(output, Mapping):
        yield from _map_arrays(name, [output])
    elif isinstance(output, (list, tuple)):
        if output and all(isinstance(item, Mapping) for item in output):
            yield from _map_arrays(name, output)
            return
        for index, item in enumerate(output):
            yield from _arrays_of_output(f"{name}[{index}]", item)
    elif output is None or isinstance(output, (str, bytes)):
        yield name, np.array(output, dtype=object)
    elif isinstance(output, (np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(output)
        # NumPy's string types have fixed lengths, so arrays of different strings would differ in type.
        yield name, array.astype(object) if array.dtype.kind in "SU" else widened(array)


def _map_arrays(name: str, maps: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[str, np.ndarray]]:
    entries = [entry for map_ in maps for entry in sorted(map_.items(), key=lambda entry: entry[0])]
    yield from _arrays_of_output(f"{name}.keys", np.array([key for key, _ in entries]))
    values = [value for _, value in entries]
    if all(np.ndim(value) == 0 for value in values):
        yield from _arrays_of_output(f"{name}.values", np.array(values))
    else:
        yield from _arrays_of_output(f"{name}.values", values)


def is_numpys(dtype: np.dtype) -> bool:
    """Return whether NumPy has `dtype` itself; other packages add bfloat16 and numbers of 8 and 4 bits."""
    return dtype.isbuiltin != _USER_DEFINED


def widened(values: np.ndarray) -> np.ndarray:
    """Return `values` in a type that NumPy has itself and that represents them exactly."""
    if is_numpys(values.dtype):
        return values
    return values.astype(np.int8 if "int" in values.dtype.name else np.float32)
