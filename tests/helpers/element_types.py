"""Element types other than float32: their rounding errors, and their values in ONNX Runtime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
from conv_cases import ConvCase, convolve, sum_of_magnitudes
from onnx import TensorProto

# NumPy type, ONNX type, unit roundoff of the type and of the accumulators, smallest positive number.
TYPES = {
    "float16": (np.float16, TensorProto.FLOAT16, 2.0**-11, 2.0**-24, 2.0**-24),
    "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16, 2.0**-8, 2.0**-24, 2.0**-133),
    "float64": (np.float64, TensorProto.DOUBLE, 2.0**-53, 2.0**-53, 2.0**-1074),
}
SMALL_TYPES = ("float16", "bfloat16")
# Relative error of an addition: tensor cores truncate, with up to four times the error of rounding.
TENSOR_CORE_ADDITION = 2.0**-22


def assert_rounded_once(y: np.ndarray, case: ConvCase, arrays, name: str, device: str = "cpu") -> None:
    _, _, unit, addition, smallest = TYPES[name]
    if device == "cuda" and name in SMALL_TYPES:
        addition = TENSOR_CORE_ADDITION
    wide = [None if array is None else array.astype(np.float64) for array in arrays]
    reference = convolve(*wide, **case.attributes)
    magnitude = sum_of_magnitudes(*wide, **case.attributes)
    assert y.dtype.name == name
    error = np.abs(y.astype(np.float64) - reference)
    bound = unit * np.abs(reference) + smallest + 1.01 * (case.terms + 2) * addition * magnitude
    assert (error <= bound).all(), f"{case}: {np.count_nonzero(~(error <= bound))} of {y.size} are wrong"


def ort_value(array: np.ndarray, element_type: int) -> onnxruntime.OrtValue:
    """Return the array as an OrtValue; bfloat16, which NumPy lacks, is passed as its bits."""
    if array.dtype == ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), element_type)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
