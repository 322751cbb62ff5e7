"""Drawn convolutions of int8 and uint8 codes, with their results in NumPy and on a card."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from convswap import _native
from convswap.reference.quantised import quant_conv

NHWC = {"input_layout": "NHWC", "output_layout": "NHWC"}


@dataclass
class Codes:
    """A drawn convolution; `attributes` are those of QuantConv, `typed` what a node has as inputs."""

    x: np.ndarray
    w: np.ndarray
    scale: np.ndarray
    y_zero_point: np.ndarray
    b: np.ndarray | None = None
    offset: np.ndarray | None = None
    residual: np.ndarray | None = None
    sum_values: np.ndarray | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def typed(self) -> dict[str, Any]:
        """The attributes for `_native`, which takes the type and the zero point of y as well."""
        return {
            **self.attributes,
            "y_type": self.y_zero_point.dtype.name,
            "y_zero_point": int(self.y_zero_point) if self.y_zero_point.dtype.itemsize == 1 else 0,
        }

    def expected(self) -> np.ndarray:
        """The result in NumPy."""
        return quant_conv(
            self.x,
            self.w,
            self.scale,
            self.y_zero_point,
            self.b,
            self.offset,
            self.residual,
            self.sum_values,
            self.attributes,
        )

    def problem(self) -> _native.Problem:
        """The problem for the planner."""
        return _native.Problem(
            self.x.shape,
            self.w.shape,
            self.b is not None,
            self.x.dtype.name,
            residual_shape=None if self.residual is None else self.residual.shape,
            has_offset=int(self.offset is not None),
            **self.typed,
        )

    def on_cpu(self) -> np.ndarray:
        """The result of the CPU."""
        operands = {name: getattr(self, name) for name in ("scale", "offset", "residual", "sum_values")}
        return _native.conv(self.x, self.w, self.b, **operands, **self.typed)

    def on_card(self, algorithm: str = "auto", alternative: int = 0) -> np.ndarray:
        """The result of a card, whose memory around y must stay as it was."""
        arrays = {
            name: None if array is None else _native.DeviceArray.from_numpy(array)
            for name, array in vars(self).items()
            if name not in ("attributes", "y_zero_point")
        }
        y = _native.DeviceArray(self.problem().output_shape, self.y_zero_point.dtype.name, 0, 4096)
        x, w, b = (arrays.pop(name) for name in "xwb")
        options = {"algorithm": algorithm, "alternative": alternative, "prepared": alternative % 2 == 0}
        y.poison()
        _native.conv_device(x, w, b, y, **arrays, **options, **self.typed)
        assert y.damage() is None
        return y.to_numpy()


def drawn(
    x_shape, w_shape, *, x_type=np.uint8, y_type=np.uint8, has_residual=False, seed=0, **attributes
) -> Codes:
    """Return codes and weights of the whole range, and scales that use most codes of y.

    With `sum_zero_point` and no `sum_scale` there are `sum_values`.
    """
    rng = np.random.default_rng(seed)
    filters = w_shape[0]
    limits = np.iinfo(x_type)
    x = rng.integers(limits.min, limits.max + 1, x_shape).astype(x_type)
    w = rng.integers(-128, 128, w_shape).astype(np.int8)
    scale = (rng.uniform(20, 60, filters) / (5500 * np.sqrt(np.prod(w_shape[1:])))).astype(np.float32)
    b = rng.integers(-9000, 9000, filters).astype(np.int32)
    is_code = np.issubdtype(y_type, np.integer)
    codes = Codes(x, w, scale, np.array(5 if is_code else 0, y_type), b, attributes=attributes)
    if has_residual:
        codes.attributes |= {"residual_layout": attributes.get("output_layout", "NCHW")}
        plain = Codes(x, w, scale, codes.y_zero_point, b, attributes=attributes).problem()
        codes.residual = rng.integers(limits.min, limits.max + 1, plain.output_shape).astype(x_type)
        codes.attributes |= {"z_scale": 0.4, "z_zero_point": 9}
    if "sum_zero_point" in attributes and "sum_scale" not in attributes:
        codes.sum_values = rng.uniform(-90, 90, 256).astype(np.float32)
    return codes
