"""Values whose elements NumPy has no type for, such as bfloat16, 8-bit floating point and 4-bit integers.

ONNX Runtime's Python makes no array of them, or one of their bits.
"""

from __future__ import annotations

import ctypes

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

_FLOATS = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1")
_WHOLE = ("INT4", "UINT4", "INT2", "UINT2")
# As ONNX Runtime writes the types; which of them there are depends on the version of onnx-ir.
_TYPES = {
    f"tensor({name.lower()})": ir.DataType[name]
    for name in (*_FLOATS, *_WHOLE)
    if name in ir.DataType.__members__
}


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
