"""Values of what ONNX Runtime's Python takes no arrays of: strings, and numbers that NumPy has not itself."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper, numpy_helper

from convswap.graph.element_types import is_numpys


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
