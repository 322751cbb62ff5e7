"""Tensors with more elements than 31 and 32 bits count.

The data repeat one block of small integers, each time scaled by a random power of two of either sign. So
every output is the block's output times its factor, without rounding. An index that wraps around reads
another factor or another element of the block.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from conv_cases import convolve
from convswap import _native
from cuda_driver import copy_to_host
from onnx import helper
from op_sessions import graph_model
from our_sessions import conv, our_session

FACTORS = np.array([1, 2, 4, 8, -1, -2, -4, -8])
KINDS = ("float32", "float16")
# Elements that a thread fills or compares at a time; they stay in the processor's cache.
CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class RepeatedBlock:
    """`count` copies of a block: images of a batch, bands of one image as high as the filter, or filters."""

    repeated: str
    block: tuple[int, ...]
    count: int
    w_shape: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.repeated}-x{list(self.x_shape)}-w{list(self.full_w_shape)}".replace(" ", "")

    @property
    def x_shape(self) -> tuple[int, ...]:
        if self.repeated == "filters":
            return self.block
        axis = {"images": 0, "bands": 2}[self.repeated]
        return tuple(n * self.count if i == axis else n for i, n in enumerate(self.block))

    @property
    def full_w_shape(self) -> tuple[int, ...]:
        return (self.count, *self.w_shape[1:]) if self.repeated == "filters" else self.w_shape

    def problem(self, kind: str) -> _native.Problem:
        return _native.Problem(self.x_shape, self.full_w_shape, type=kind, **self.attributes)

    @property
    def max_elements(self) -> int:
        shapes = (self.x_shape, self.full_w_shape, self.problem("float32").output_shape)
        return max(math.prod(shape) for shape in shapes)

    @property
    def _picks(self) -> np.ndarray:
        """Index of each block's factor."""
        return np.random.default_rng(self.count).integers(0, len(FACTORS), self.count)

    @property
    def _one_block(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(list(self.block))
        return random.integers(-3, 4, self.block), random.integers(-2, 3, self.w_shape)

    def arrays(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Return x and w."""
        x, w = self._one_block
        if self.repeated == "filters":
            return x.astype(kind), self._repeated(w, kind).reshape(self.full_w_shape)
        return self._repeated(x, kind).reshape(self.x_shape), w.astype(kind)

    def _repeated(self, block: np.ndarray, kind: str) -> np.ndarray:
        table = (FACTORS[:, None] * block.ravel()).astype(kind)
        picks = self._picks
        copies = np.empty((self.count, block.size), kind)

        def fill(first: int, end: int) -> None:
            # No index needs clipping; with "clip" NumPy writes into `copies` without a buffer.
            np.take(table, picks[first:end], axis=0, out=copies[first:end], mode="clip")

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, *zip(*self._chunks(block.size), strict=True)))
        return copies

    def _chunks(self, block_size: int) -> Iterator[tuple[int, int]]:
        step = max(1, CHUNK_ELEMENTS // block_size)
        for first in range(0, self.count, step):
            yield first, min(first + step, self.count)

    def check(self, y: np.ndarray, kind: str) -> None:
        """Assert that every output is exactly the block's output times the block's factor."""
        assert (y.shape, y.dtype) == (self.problem(kind).output_shape, kind)
        reference = convolve(*self._one_block, **self.attributes)
        # Sums of small integers, which float32 and TF32 represent exactly. float16 rounds them once, and
        # scales them without overflow.
        assert 0 < np.abs(reference).max() < 2**12
        # In the output of one image with several filters, the bands follow each other within each filter.
        planes = reference.shape[1] if self.repeated == "bands" else 1
        tables = reference.astype(kind).reshape(planes, 1, -1) * FACTORS[:, None].astype(kind)
        y = y.reshape(planes, self.count, -1)
        picks = self._picks

        def first_wrong(plane: int, first: int, end: int) -> tuple[int, int, int] | None:
            wrong = y[plane, first:end] != tables[plane][picks[first:end]]  # NaN counts as wrong too
            if not wrong.any():
                return None
            block, element = np.unravel_index(wrong.argmax(), wrong.shape)
            return plane, first + int(block), int(element)

        tasks = [(plane, *chunk) for plane in range(planes) for chunk in self._chunks(y.shape[2])]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            errors = [at for at in pool.map(first_wrong, *zip(*tasks, strict=True)) if at is not None]
        if errors:
            plane, block, element = errors[0]
            expected = tables[plane, picks[block], element]
            raise AssertionError(
                f"wrong in {len(errors)} of {len(tasks)} chunks, first in plane {plane}, block {block}, "
                f"element {element}: {y[plane, block, element]}, expected {expected}"
            )


BOTH = RepeatedBlock("images", (1, 4, 63, 65), 131_300, (4, 4, 3, 3), {"pads": [1, 1, 1, 1]})
LARGE = (
    # 2^32 elements in x, then in y, and 2^31 in both. No extent is a power of two, so that no index wraps
    # onto the start of a block.
    RepeatedBlock("images", (1, 8, 63, 65), 131_400, (2, 8, 3, 3), {"strides": [4, 4]}),
    RepeatedBlock("images", (1, 1, 63, 65), 65_700, (16, 1, 3, 3), {"pads": [1, 1, 1, 1]}),
    BOTH,
    # 2^31 within a plane of one image, and within the planes of one image together.
    RepeatedBlock("bands", (1, 1, 3, 46_398), 15_470, (2, 1, 3, 3), {"strides": [3, 2]}),
    RepeatedBlock("bands", (1, 1, 1, 20_000), 30_000, (4, 1, 1, 3)),
    # 2^31 in both x and y of a 1x1 convolution, whose pixels are processed in pairs.
    RepeatedBlock("images", (1, 16, 63, 66), 32_400, (16, 16, 1, 1)),
    # 2^31 weights.
    RepeatedBlock("filters", (1, 70_001, 1, 1), 30_701, (1, 70_001, 1, 1)),
)
every_large = pytest.mark.parametrize("large", LARGE, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)


def few_blocks_of(large: RepeatedBlock) -> RepeatedBlock:
    return dataclasses.replace(large, count=9)


def supporting(large: RepeatedBlock, kind: str, device: str, **options: Any) -> list[str]:
    """Return the algorithms of the catalog that support the problem."""
    problem = large.problem(kind)
    names = [entry.name for entry in _native.catalog() if entry.device == device]
    return [name for name in names if not _native.why_not(problem, name, device, **options)]


@every_kind
@every_large
def test_few_blocks_are_the_definition(large, kind):
    """Shows that the data and the reference of the large tests are correct for any number of blocks."""
    small = few_blocks_of(large)
    x, w = small.arrays(kind)
    reference = convolve(x, w, **small.attributes)
    small.check(reference.astype(kind), kind)
    for name in supporting(small, kind, "cpu"):
        small.check(_native.conv(x, w, algorithm=name, **small.attributes), kind)


@every_large
def test_output_that_wraps_around_or_is_not_written_is_found(large):
    """Shows that the large tests can fail."""
    small = few_blocks_of(large)
    x, w = small.arrays("float32")
    y = _native.conv(x, w, **small.attributes)
    elements = y.size
    for distance in (1, elements // 2, elements // 3):
        wrong = y.copy()
        wrong.ravel()[-distance:] = y.ravel()[:distance]
        with pytest.raises(AssertionError, match="wrong in"):
            small.check(wrong, "float32")
    wrong = y.copy()
    wrong.ravel()[-1] = np.nan
    with pytest.raises(AssertionError, match="wrong in 1 of"):
        small.check(wrong, "float32")


@every_large
def test_every_problem_has_more_elements_than_31_bits_count(large):
    assert large.max_elements > 2**31


def test_there_are_problems_with_more_elements_than_32_bits_count():
    assert any(math.prod(large.x_shape) > 2**32 for large in LARGE)
    assert any(math.prod(large.problem("float32").output_shape) > 2**32 for large in LARGE)


@every_large
def test_few_channels_and_naive_say_that_they_support_it(large):
    """Ensures that the test on the card includes both."""
    assert {"few_channels", "naive"} <= set(supporting(large, "float32", "cuda", compute_capability=90))
    assert "naive" in supporting(large, "float16", "cuda", compute_capability=90)


@pytest.mark.gpu
@pytest.mark.large
@every_kind
@every_large
def test_every_cuda_algorithm_that_supports_it_is_exact_on_the_card(large, kind):
    names = supporting(large, kind, "cuda")
    assert _native.choose(large.problem(kind), "cuda") in names
    x, w = map(_native.DeviceArray.from_numpy, large.arrays(kind))
    y = _native.DeviceArray(large.problem(kind).output_shape, kind)
    # One array for all: the system takes longer to give new memory than a card takes to fill it.
    on_host = np.empty(large.problem(kind).output_shape, kind)
    for name in names:
        y.poison()
        _native.conv_device(x, w, None, y, algorithm=name, **large.attributes)
        copy_to_host(on_host, y.pointer)
        large.check(on_host, kind)


@pytest.mark.gpu
@pytest.mark.algorithm("few_channels")
@pytest.mark.large
@pytest.mark.parametrize("width", [8192, 8193])
def test_two_images_of_more_outputs_than_32_bits_count_do_not_meet(width):
    """`few_channels` may process an image in each half of a tile, with a 32-bit offset between the halves."""
    random = np.random.default_rng(width)
    x = random.integers(-3, 4, (2, 1, 8192, width)).astype(np.float16)
    w = random.integers(1, 4, (64, 1, 1, 1)).astype(np.float16)
    y = _native.DeviceArray((2, 64, 8192, width), "float16")
    y.poison()
    x_on_card, w_on_card = map(_native.DeviceArray.from_numpy, (x, w))
    _native.conv_device(x_on_card, w_on_card, None, y, algorithm="few_channels")
    actual = y.to_numpy()
    # One reference plane for each image and each distinct weight. Comparing bits runs at the memory's speed.
    reference = {(image, factor): x[image, 0] * factor for image in range(2) for factor in np.unique(w)}

    def is_right(image: int, plane: int) -> bool:
        expected = reference[image, w[plane, 0, 0, 0]]
        return np.array_equal(actual[image, plane].view(np.int16), expected.view(np.int16))

    planes = [(image, plane) for image in range(2) for plane in range(64)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        right = list(pool.map(is_right, *zip(*planes, strict=True)))
    assert [where for where, is_it in zip(planes, right, strict=True) if not is_it] == []


@pytest.mark.large
@every_large
def test_every_cpu_algorithm_that_supports_it_is_exact(large):
    x, w = large.arrays("float32")
    for name in supporting(large, "float32", "cpu"):
        large.check(_native.conv(x, w, algorithm=name, **large.attributes), "float32")


def check_session(large: RepeatedBlock, kind: str, way: str, device: str) -> None:
    x, w = large.arrays(kind)
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    node = conv("x w", **large.attributes)
    model = graph_model(
        [node], {"x": ("N", *large.x_shape[1:])}, {"w": w}, opset=22, element_type=element_type
    )
    session = our_session(model, way, device)
    shape = large.problem(kind).output_shape
    binding = session.io_binding()
    if device == "cpu":
        y = np.full(shape, np.nan, kind)
        binding.bind_input("x", "cpu", 0, np.dtype(kind).type, x.shape, x.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.dtype(kind).type, shape, y.ctypes.data)
        session.run_with_iobinding(binding)
        large.check(y, kind)
        return
    x_on_card = _native.DeviceArray.from_numpy(x)
    del x
    y_on_card = _native.DeviceArray(shape, kind)
    y_on_card.poison()
    binding.bind_input("x", "cuda", 0, np.dtype(kind).type, x_on_card.shape, x_on_card.pointer)
    binding.bind_output("y", "cuda", 0, np.dtype(kind).type, shape, y_on_card.pointer)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    large.check(y_on_card.to_numpy(), kind)


either_kind_and_way = pytest.mark.parametrize(
    ("kind", "way"), [("float32", "swapped"), ("float16", "override")]
)


@either_kind_and_way
def test_session_of_few_blocks_is_the_definition(kind, way, device):
    """Shows that the data of the test below are correct for any number of blocks."""
    check_session(few_blocks_of(BOTH), kind, way, device)


@pytest.mark.large
@either_kind_and_way
def test_session_reads_and_writes_more_elements_than_31_bits_count(kind, way, device):
    assert math.prod(BOTH.x_shape) > 2**31 and math.prod(BOTH.problem(kind).output_shape) > 2**31
    check_session(BOTH, kind, way, device)
