"""Attributes and shapes at ONNX's limits: computed or refused, without overflow of 64-bit products."""

from __future__ import annotations

import numpy as np
import pytest
from convswap import _native
from convswap.errors import ConvswapError

LARGEST = 2**31 - 1
FAR_APART = {"pads": [LARGEST] * 4, "strides": [LARGEST] * 2, "dilations": [LARGEST] * 2}


@pytest.mark.parametrize("channels", [1, 4])
def test_a_tiny_image_with_the_largest_strides_dilations_and_pads_is_computed(channels: int) -> None:
    """Each output sees the image with one tap only, a corner of the filter."""
    x = np.full((1, channels, 1, 1), 2, np.float32)
    w = np.arange(channels * 4, dtype=np.float32).reshape(1, channels, 2, 2)
    problem = _native.Problem(x.shape, w.shape, **FAR_APART)
    # `direct` would need a phase image of stride * stride elements.
    assert "MiB" in _native.why_not(problem, "direct", "cpu")
    y = _native.conv(x, w, **FAR_APART)
    np.testing.assert_array_equal(y, 2 * w.sum(axis=1, keepdims=True)[:, :, ::-1, ::-1])


def test_without_channels_the_largest_dilations_leave_the_bias() -> None:
    x = np.empty((1, 0, 1, 1), np.float32)
    w = np.empty((2, 0, 2, 2), np.float32)
    y = _native.conv(x, w, np.array([3, 4], np.float32), **FAR_APART)
    np.testing.assert_array_equal(y, np.broadcast_to(np.array([3, 4])[None, :, None, None], (1, 2, 2, 2)))


def test_without_filters_a_group_and_channels_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(
        ConvswapError, match=r"weights of shape \[0, 1099511627776, 3\]: expected fewer channels"
    ):
        _native.Problem((1, 5, 4), (0, 2**40, 3), group=LARGEST)


def test_without_filters_or_channels_the_largest_group_gives_an_empty_output() -> None:
    x = np.empty((2**40, 0, 4), np.float32)
    y = _native.conv(x, np.empty((0, 0, 3), np.float32), group=LARGEST)
    assert y.shape == (2**40, 0, 2)


def test_more_operations_than_64_bits_count_are_the_most_they_can() -> None:
    problem = _native.Problem((1, 2**20, 2**16, 2**16), (1, 2**20, 2**15, 2**15))
    assert problem.operations == 2**63 - 1
