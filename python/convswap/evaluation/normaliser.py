"""Turn pixels (n, channels, height, width) into their values in a table (channels, 256)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnxruntime
from onnx import numpy_helper, parser

from convswap.runtime.device import Device
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.sessions import DEFAULT, make_session
from convswap.runtime.values import is_numpys

Normaliser = Callable[[np.ndarray], np.ndarray | onnxruntime.OrtValue]
_LOOKUP = """<ir_version: 8, opset_import: ["": 13]> lookup (uint8[n, c, h, w] pixels) => (values) {
    codes = Cast <to = 6> (pixels)
    indices = Add (codes, offsets)
    values = Gather (table, indices)
}"""


def normaliser(table: np.ndarray, device: Device, card: int) -> Normaliser:
    """Return the function that suits the device, and the type: Gather has NumPy's types only."""
    is_on_host = device.name == "cpu" or not is_numpys(table.dtype)
    return partial(_values, table) if is_on_host else session_normaliser(table, device, card)


def session_normaliser(table: np.ndarray, device: Device, card: int) -> Normaliser:
    """Return a function that copies pixels to `device`, and leaves values there for both sides.

    To copy float32 values from the host takes as long as to compute a ResNet-50 on an H200.
    """
    model = parser.parse_model(_LOOKUP)
    offsets = 256 * np.arange(len(table), dtype=np.int32).reshape(-1, 1, 1)
    for name, array in {"offsets": offsets, "table": table.reshape(-1)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    side = DEFAULT.with_options({"device_id": str(card)} if device.name == "cuda" else {})
    session = make_session(model, side, device)

    def values(pixels: np.ndarray) -> onnxruntime.OrtValue:
        binding = session.io_binding()
        with plain_errors("ONNX Runtime cannot normalise the images"):
            binding.bind_cpu_input("pixels", pixels)
            binding.bind_output("values", device.name, card)
            session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return values


def _values(table: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    values = np.empty(pixels.shape, table.dtype)
    for image, normalised in zip(pixels, values, strict=True):
        for channel, of_pixel in enumerate(table):
            # Without mode="clip" NumPy copies the result once more.
            np.take(of_pixel, image[channel], out=normalised[channel], mode="clip")
    return values
