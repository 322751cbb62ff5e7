"""Fold constant biases, scales and batch normalisations into a convolution's weights and bias."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.epilogue import NotFusable, read_float, read_int
from convswap.graph.external_weights import aligned_empty

# The largest relative error of rounding to a type, among its normal numbers.
_ROUNDING = {
    ir.DataType.DOUBLE: 2.0**-53,
    ir.DataType.FLOAT: 2.0**-24,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}
# ONNX stores it as a float32.
_DEFAULT_EPSILON = float(np.float32(1e-5))
# The number of weights that are folded at once: all of them in float64 would take many times their memory.
_ELEMENTS_AT_A_TIME = 1 << 20


class Folding:
    """The weights and the bias of a convolution with the nodes behind it folded into them.

    `filters` is K, the first extent of W, or None where it is not known; `element_type` is that of W. Where
    a method raises NotFusable, nothing has changed.
    """

    def __init__(
        self, conv: ir.Node, filters: int | None, element_type: ir.DataType, constants: Constants
    ) -> None:
        self._weights = conv.inputs[1]
        self._bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        self._element_type = element_type
        self._constants = constants
        self._factor: np.ndarray | None = None
        self._offset: np.ndarray | None = None
        self.filters = filters

    @property
    def changes_weights(self) -> bool:
        """Whether W differs from that of the original Conv."""
        return self._factor is not None

    @property
    def changes_bias(self) -> bool:
        """Whether B differs from that of the original Conv."""
        return self._offset is not None

    def add(self, addend: np.ndarray) -> None:
        """Add one number for each filter to the result.

        Raises:
            NotFusable: the bias of the convolution is not constant.
        """
        self._set(self._factor, self._current_offset() + addend)

    def multiply(self, factor: np.ndarray) -> None:
        """Multiply the result by one number for each filter.

        Raises:
            NotFusable: the weights or the bias of the convolution are not constant, or would become too
                large or too small for their type.
        """
        self._scale(factor, np.zeros_like(factor), np.zeros_like(factor))

    def normalise(self, node: ir.Node, version: int) -> None:
        """Apply the BatchNormalization `node`, of opset `version`, to the result.

        Raises:
            NotFusable: it is in training mode, or one of its inputs is not constant.
        """
        if len([output for output in node.outputs if output.name]) > 1 or read_int(node, "training_mode", 0):
            raise NotFusable("it is in training mode")
        if version < 9 and read_int(node, "spatial", 1) != 1:
            raise NotFusable("it has statistics for each pixel (spatial is 0)")
        tensors = [self._constants.tensor(value) for value in node.inputs[1:]]
        known = [tensor for tensor in tensors if tensor is not None]
        if len(known) != 4:
            raise NotFusable("its scale, bias, mean or variance is not constant")
        if self.filters is None or any(tuple(tensor.shape.numpy()) != (self.filters,) for tensor in known):
            raise NotFusable("its scale, bias, mean or variance does not have one number for each filter")
        scale, bias, mean, variance = (_float64(tensor) for tensor in known)
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(variance + read_float(node, "epsilon", _DEFAULT_EPSILON))
        self._scale(factor, mean, bias)

    def weights(self) -> np.ndarray:
        """Return the folded W, in its own type."""
        tensor = self._weights_tensor()
        folded = aligned_empty(tensor.shape.numpy(), self._element_type.numpy())
        for filters, values in self._folded_weights(self._factor):
            folded[filters] = values
        return folded

    def bias(self) -> np.ndarray:
        """Return the folded B, in the type of W; `filters` must be known."""
        offset = np.zeros(self.filters or 0) if self._offset is None else self._offset
        return offset.astype(self._element_type.numpy())

    def _scale(self, factor: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """Fold (y - before) * factor + after, where y is the result so far."""
        if self._constants.tensor(self._weights) is None:
            raise NotFusable("the weights of the convolution are not constant")
        with np.errstate(all="ignore"):
            offset = (self._current_offset() - before) * factor + after
            total = factor if self._factor is None else self._factor * factor
        self._set(total, offset)

    def _set(self, factor: np.ndarray | None, offset: np.ndarray) -> None:
        # This raises NotFusable before anything is changed.
        if factor is not None and factor is not self._factor:
            for _ in self._folded_weights(factor):
                pass
        with np.errstate(over="ignore"):
            rounded = offset.astype(self._element_type.numpy())
        if not np.isfinite(rounded.astype(np.float64)).all():
            raise NotFusable("the folded bias would not be finite")
        self._factor, self._offset = factor, offset

    def _folded_weights(self, factor: np.ndarray | None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the weights multiplied by `factor`, some filters at a time, or raise NotFusable."""
        tensor = self._weights_tensor()
        given = tensor.numpy()
        step = max(1, _ELEMENTS_AT_A_TIME // max(1, math.prod(given.shape[1:])))
        for start in range(0, given.shape[0], step):
            filters = slice(start, start + step)
            exact = _in_float64(given[filters], tensor)
            if factor is not None:
                with np.errstate(all="ignore"):
                    exact = exact * factor[filters].reshape(-1, *(1,) * (exact.ndim - 1))
            yield filters, self._rounded(exact)

    def _rounded(self, exact: np.ndarray) -> np.ndarray:
        """Return weights rounded to their type, or raise NotFusable where that loses too much."""
        with np.errstate(all="ignore"):
            rounded = exact.astype(self._element_type.numpy())
            back = rounded.astype(np.float64)
        if not np.isfinite(back).all():
            raise NotFusable("the folded weights would not be finite")
        filters = (exact.shape[0], math.prod(exact.shape[1:]))
        lost = np.linalg.norm((back - exact).reshape(filters), axis=1)
        # Rounding to subnormal numbers loses more than this.
        allowed = _ROUNDING[self._element_type] * np.linalg.norm(exact.reshape(filters), axis=1)
        if (lost > 1.01 * allowed).any():
            raise NotFusable(f"the folded weights would be too small for {rounded.dtype}")
        return rounded

    def _weights_tensor(self) -> ir.TensorProtocol:
        tensor = self._constants.tensor(self._weights)
        assert tensor is not None
        return tensor

    def _current_offset(self) -> np.ndarray:
        if self._offset is not None:
            return self._offset
        if self._bias is None:
            return np.zeros(self.filters or 0)
        tensor = self._constants.tensor(self._bias)
        if tensor is None:
            raise NotFusable("the bias of the convolution is not constant")
        if tuple(tensor.shape.numpy()) != (self.filters,):
            raise NotFusable("the bias of the convolution does not have one number for each filter")
        return _float64(tensor)


def numbers_for_filters(tensor: ir.TensorProtocol, filters: int, rank: int) -> np.ndarray | None:
    """Return `tensor` as one number for each filter, in float64, if it broadcasts so to (n, k, spatial...).

    None otherwise. ONNX aligns shapes at their ends, so (K, 1, 1) and (1, K, 1, 1) are along k, but (K) is
    along the last axis.
    """
    shape = tuple(tensor.shape.numpy())
    if len(shape) > rank:
        return None
    aligned = (1,) * (rank - len(shape)) + shape
    if any(extent != 1 for extent in aligned[:1] + aligned[2:]) or aligned[1] not in (1, filters):
        return None
    return np.broadcast_to(_float64(tensor).reshape(-1), [filters])


def _float64(tensor: ir.TensorProtocol) -> np.ndarray:
    # Check the type first: a tensor of another type may have no values that NumPy can read.
    _check_floating(tensor)
    return _in_float64(tensor.numpy(), tensor)


def _check_floating(tensor: ir.TensorProtocol) -> None:
    if not tensor.dtype.is_floating_point():
        raise NotFusable(f"the constant {tensor.name!r} is of no floating-point type")


def _in_float64(values: np.ndarray, tensor: ir.TensorProtocol) -> np.ndarray:
    """Return `values`, which are part of `tensor`, in float64."""
    _check_floating(tensor)
    # A signalling NaN, which damaged models may have, would cause a warning.
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)
