"""Fold constant biases, scales and batch normalisations into a convolution's weights and bias."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
# ONNX's default epsilon, a float32.
_DEFAULT_EPSILON = float(np.float32(1e-5))
# Number of weights that are folded at a time. All weights in float64 would take many times their memory.
_CHUNK_ELEMENTS = 1 << 20


def normalisation(
    node: ir.Node, version: int, constants: Constants, channels: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return factor, mean and bias of a BatchNormalization of opset `version`: (x - mean) * factor + bias.

    Raises:
        NotFusable: the node is in training mode or has statistics for each pixel, or one of its inputs is not
            constant or of no floating-point type or does not have one number for each of `channels`.
    """
    if len([output for output in node.outputs if output.name]) > 1 or read_int(node, "training_mode", 0):
        raise NotFusable("it is in training mode")
    if version < 9 and read_int(node, "spatial", 1) != 1:
        raise NotFusable("it has statistics for each pixel (spatial is 0)")
    tensors = [constants.tensor(value) for value in node.inputs[1:]]
    parameters = [tensor for tensor in tensors if tensor is not None]
    if len(parameters) != 4:
        raise NotFusable("its scale, bias, mean or variance is not constant")
    if channels is None or any(tuple(tensor.shape.numpy()) != (channels,) for tensor in parameters):
        raise NotFusable("its scale, bias, mean or variance does not have one number for each output channel")
    scale, bias, mean, variance = (_float64(tensor) for tensor in parameters)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + read_float(node, "epsilon", _DEFAULT_EPSILON))
    return factor, mean, bias


class Folding:
    """The convolution's weights W and bias B after folding.

    `_weight_factor` has one number per output channel by which W is multiplied; `_new_bias` replaces B. None
    means unchanged. `channels` is K, the first extent of W, or None if unknown; `element_type` is that of W.
    A method that raises NotFusable leaves the object unchanged.
    """

    def __init__(
        self, conv: ir.Node, channels: int | None, element_type: ir.DataType, constants: Constants
    ) -> None:
        self._weights = conv.inputs[1]
        self._bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        self._element_type = element_type
        self._constants = constants
        self._weight_factor: np.ndarray | None = None
        self._new_bias: np.ndarray | None = None
        self.channels = channels

    @property
    def changes_weights(self) -> bool:
        """Whether a scale or batch normalisation was folded, so that W needs new weights."""
        return self._weight_factor is not None

    @property
    def changes_bias(self) -> bool:
        """Whether any node was folded, so that B needs a new bias, even one with the same values."""
        return self._new_bias is not None

    def add(self, addend: np.ndarray) -> None:
        """Add one number per output channel to the result.

        Raises:
            NotFusable: the bias of the convolution is not constant, of no floating-point type or of a wrong
                length, or the new bias would not be finite.
        """
        self._set(self._weight_factor, self._bias_so_far() + addend)

    def multiply(self, factor: np.ndarray) -> None:
        """Multiply the result by one number per output channel.

        Raises:
            NotFusable: the weights or the bias of the convolution are not constant or of no floating-point
                type, the bias has a wrong length, the folded weights would be too large or too small for
                their type, or the folded bias would not be finite.
        """
        self._scale(factor, np.zeros_like(factor), np.zeros_like(factor))

    def normalise(self, node: ir.Node, version: int) -> None:
        """Apply the BatchNormalization `node`, of opset `version`, to the result.

        Raises:
            NotFusable: for a reason of `normalisation` or `multiply`.
        """
        self._scale(*normalisation(node, version, self._constants, self.channels))

    def weights(self) -> np.ndarray:
        """Return the folded W, in its original type."""
        tensor = self._weights_tensor()
        folded = aligned_empty(tensor.shape.numpy(), self._element_type.numpy())
        for chunk, values in self._folded_weights(self._weight_factor):
            folded[chunk] = values
        return folded

    def bias(self) -> np.ndarray:
        """Return the folded B, in the type of W; `channels` must be known."""
        bias = np.zeros(self.channels or 0) if self._new_bias is None else self._new_bias
        return bias.astype(self._element_type.numpy())

    def _scale(self, factor: np.ndarray, subtrahend: np.ndarray, addend: np.ndarray) -> None:
        """Fold (y - subtrahend) * factor + addend, where y is the result so far."""
        if self._constants.tensor(self._weights) is None:
            raise NotFusable("the weights of the convolution are not constant")
        with np.errstate(all="ignore"):
            new_bias = (self._bias_so_far() - subtrahend) * factor + addend
            weight_factor = factor if self._weight_factor is None else self._weight_factor * factor
        self._set(weight_factor, new_bias)

    def _set(self, weight_factor: np.ndarray | None, new_bias: np.ndarray) -> None:
        # Fold all weights once as a check, so that NotFusable is raised before the object changes.
        if weight_factor is not None and weight_factor is not self._weight_factor:
            for _ in self._folded_weights(weight_factor):
                pass
        with np.errstate(over="ignore"):
            rounded = new_bias.astype(self._element_type.numpy())
        if not np.isfinite(rounded.astype(np.float64)).all():
            raise NotFusable("the folded bias would not be finite")
        self._weight_factor, self._new_bias = weight_factor, new_bias

    def _folded_weights(self, factor: np.ndarray | None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the weights times `factor`, a chunk of output channels at a time, or raise NotFusable."""
        tensor = self._weights_tensor()
        weights = tensor.numpy()
        for chunk in chunks_of(weights.shape):
            exact = float64_of(weights[chunk], tensor)
            if factor is not None:
                with np.errstate(all="ignore"):
                    exact = exact * factor[chunk].reshape(-1, *(1,) * (exact.ndim - 1))
            yield chunk, rounded_weights(exact, self._element_type)

    def _weights_tensor(self) -> ir.TensorProtocol:
        tensor = self._constants.tensor(self._weights)
        assert tensor is not None
        return tensor

    def _bias_so_far(self) -> np.ndarray:
        if self._new_bias is not None:
            return self._new_bias
        if self._bias is None:
            return np.zeros(self.channels or 0)
        tensor = self._constants.tensor(self._bias)
        if tensor is None:
            raise NotFusable("the bias of the convolution is not constant")
        if tuple(tensor.shape.numpy()) != (self.channels,):
            raise NotFusable("the bias of the convolution does not have one number for each output channel")
        return _float64(tensor)


def chunks_of(shape: Sequence[int]) -> Iterator[slice]:
    """Yield the parts, along the first axis, in which weights of this shape are folded."""
    step = max(1, _CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def rounded_weights(exact: np.ndarray, element_type: ir.DataType) -> np.ndarray:
    """Return weights rounded to their type.

    Raises:
        NotFusable: rounding loses too much, or a weight is not finite.
    """
    with np.errstate(all="ignore"):
        rounded: np.ndarray = exact.astype(element_type.numpy())
        widened = rounded.astype(np.float64)
    if not np.isfinite(widened).all():
        raise NotFusable("the folded weights would not be finite")
    matrix = (exact.shape[0], math.prod(exact.shape[1:]))
    error = np.linalg.norm((widened - exact).reshape(matrix), axis=1)
    # Rounding to subnormal numbers exceeds this bound.
    bound = _ROUNDING[element_type] * np.linalg.norm(exact.reshape(matrix), axis=1)
    if (error > 1.01 * bound).any():
        raise NotFusable(f"the folded weights would be too small for {rounded.dtype}")
    return rounded


def per_channel_values(
    tensor: ir.TensorProtocol, channels: int, rank: int, axis: int = 1
) -> np.ndarray | None:
    """Return `tensor`, broadcast to (n, k, spatial...), as one float64 number per output channel.

    One number is repeated for all channels. Return None if the tensor has more than `rank` axes, more than
    one element along another axis than k, or another length there. ONNX aligns shapes at their last axes: (K,
    1, 1) and (1, K, 1, 1) lie along k, but (K) lies along the last axis. `axis` is that of k: 1, or the last
    one in NHWC.
    """
    shape = tuple(tensor.shape.numpy())
    if len(shape) > rank:
        return None
    aligned = (1,) * (rank - len(shape)) + shape
    others = aligned[:axis] + aligned[axis + 1 :]
    if any(extent != 1 for extent in others) or aligned[axis] not in (1, channels):
        return None
    return np.broadcast_to(_float64(tensor).reshape(-1), [channels])


def _float64(tensor: ir.TensorProtocol) -> np.ndarray:
    # The type is checked first: NumPy may be unable to read the values of other types.
    _check_floating(tensor)
    return float64_of(tensor.numpy(), tensor)


def _check_floating(tensor: ir.TensorProtocol) -> None:
    if not tensor.dtype.is_floating_point():
        raise NotFusable(f"the constant {tensor.name!r} is of no floating-point type")


def float64_of(values: np.ndarray, tensor: ir.TensorProtocol) -> np.ndarray:
    """Return `values`, a part of `tensor`, in float64.

    Raises:
        NotFusable: the tensor is of no floating-point type.
    """
    _check_floating(tensor)
    # A signalling NaN in a damaged model would cause a warning.
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)
