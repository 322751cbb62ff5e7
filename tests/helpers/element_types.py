"""The element types beside float32: how each rounds, and how ONNX Runtime is given them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
from conv_cases import ConvCase, convolve, sum_of_sizes
from onnx import TensorProto

# numpy type, ONNX type, unit roundoff of the type and of the sums, the smallest positive number.
TYPES = {
    "float16": (np.float16, TensorProto.FLOAT16, 2.0**-11, 2.0**-24, 2.0**-24),
    "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16, 2.0**-8, 2.0**-24, 2.0**-133),
    "float64": (np.float64, TensorProto.DOUBLE, 2.0**-53, 2.0**-53, 2.0**-1074),
}
SMALL_TYPES = ("float16", "bfloat16")
# Tensor cores truncate where they add, which costs up to four times as much as rounding.
TENSOR_CORE_SUMS = 2.0**-22


def assert_rounded_once(y: np.ndarray, case: ConvCase, arrays, name: str, device: str = "cpu") -> None:
    _, _, own, sums, smallest = TYPES[name]
    if device == "cuda" and name in SMALL_TYPES:
        sums = TENSOR_CORE_SUMS
    wide = [None if array is None else array.astype(np.float64) for array in arrays]
    reference = convolve(*wide, **case.attributes)
    magnitude = sum_of_sizes(*wide, **case.attributes)
    assert y.dtype.name == name
    error = np.abs(y.astype(np.float64) - reference)
    bound = own * np.abs(reference) + smallest + 1.01 * (case.terms + 2) * sums * magnitude
    assert (error <= bound).all(), f"{case}: {np.count_nonzero(~(error <= bound))} of {y.size} are wrong"


def ort_value(array: np.ndarray, element_type: int) -> onnxruntime.OrtValue:
    """bfloat16 has no NumPy type of its own, so ONNX Runtime takes its bits."""
    if array.dtype == ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), element_type)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
