"""The CPU algorithms against the definition of ONNX's Conv.

`reference` sums in float64: float64 results differ from NumPy's only by the order of terms, float32 results
also by one rounding. `direct` computes in float32: its bound grows with the number and size of a sum's terms.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conv_cases import CASES, ConvCase, case_id, convolve, random_cases, sum_of_magnitudes
from convswap import _native
from convswap.errors import ConvswapError
from each_case import each
from repeats import repeats

# Unit roundoff: half the distance from 1 to the next number.
FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53

INSTRUCTION_SETS = _native.direct_instruction_sets()
BIASED = ConvCase((2, 3, 9, 8), (7, 3, 3, 3), True, {"pads": [1, 1, 1, 1]})


def conv(case: ConvCase, dtype: type = np.float32, **options) -> np.ndarray:
    """Return the library's result, in memory that recently held NaN."""
    x, w, b = case.arrays(dtype)
    stale = np.full(case.reference.shape, np.nan, dtype)
    del stale  # NumPy and the allocator reuse small blocks without clearing them.
    return _native.conv(x, w, b, **options, **case.attributes)


@each("case", CASES)
def test_reference_is_the_definition_in_float64(case):
    x, w, b = case.arrays(np.float64)
    y = conv(case, np.float64, algorithm="reference")
    assert y.dtype == np.float64
    magnitude = sum_of_magnitudes(x, w, b, **case.attributes)
    reference = convolve(x, w, b, **case.attributes)
    assert y.shape == reference.shape
    # Two sums of the same terms in different orders.
    assert np.all(np.abs(y - reference) <= 2 * (case.terms + 1) * FLOAT64 * magnitude)


@each("case", CASES)
def test_reference_of_float32_is_the_float64_result_rounded_once(case):
    y = conv(case, algorithm="reference")
    assert y.dtype == np.float32
    # Cancellation costs no accuracy: float64 has 29 bits more than the result.
    np.testing.assert_allclose(
        y, case.reference, rtol=1.01 * FLOAT32, atol=case.magnitude.max() * case.terms * FLOAT64
    )


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@each("case", CASES)
def test_direct_is_the_definition_on_every_instruction_set(case, instruction_set):
    case.check(conv(case, algorithm="direct", instruction_set=instruction_set), FLOAT32)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_direct_is_the_definition_for_many_draws(instruction_set):
    for case in random_cases(seed=2, count=repeats(200), max_products=5_000_000):
        y = conv(case, algorithm="direct", instruction_set=instruction_set)
        try:
            case.check(y, FLOAT32)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


def instruction_sets_up_to(limit: str) -> subprocess.CompletedProcess[str]:
    program = "from convswap import _native; print(*_native.direct_instruction_sets())"
    environment = {**os.environ, "CONVSWAP_MAX_INSTRUCTION_SET": limit}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("limit", INSTRUCTION_SETS)
def test_no_instruction_set_is_better_than_the_one_in_the_environment(limit):
    allowed = INSTRUCTION_SETS[INSTRUCTION_SETS.index(limit) :]
    assert instruction_sets_up_to(limit).stdout.split() == allowed


def test_unknown_instruction_set_in_the_environment_is_refused():
    refused = instruction_sets_up_to("avx3").stderr
    assert "CONVSWAP_MAX_INSTRUCTION_SET: unknown instruction set 'avx3'; did you mean 'avx2'?" in refused


@pytest.mark.parametrize(
    "case",
    [
        # Bands of rows; a row that exceeds a band's memory; more filters than a tile; 1x1 filters.
        ConvCase((1, 3, 300, 301), (5, 3, 3, 3), True, {"pads": [1, 1, 1, 1]}),
        ConvCase((1, 2, 3, 40_001), (2, 2, 3, 5)),
        ConvCase((1, 2, 100_003), (3, 2, 7), True, {"strides": [3], "dilations": [2]}),
        ConvCase((1, 16, 64, 65), (37, 16, 1, 1), True),
        ConvCase((65, 1, 12, 13), (6, 1, 5, 5)),
    ],
    ids=case_id,
)
def test_direct_is_the_definition_where_the_image_is_cut_into_bands(case):
    case.check(conv(case, algorithm="direct"), FLOAT32)


# More taps than are multiplied at once, and more filters than a task has, so that tasks share their input.
MANY_CHANNELS = [
    ConvCase((1, 13, 12, 11), (70, 13, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    ConvCase((1, 13, 25, 23), (70, 13, 3, 3), False, {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ConvCase((1, 26, 9, 12), (100, 13, 5, 3), True, {"group": 2, "strides": [3, 1], "dilations": [1, 2]}),
    ConvCase((1, 12, 3, 9, 9), (60, 12, 2, 3, 3), True, {"pads": [1, 0, 1, 0, 1, 1]}),
    # 1x1 filters read the image directly: planes of whole vectors, and others.
    *(ConvCase((2, 200, *size), (60, 200, 1, 1), True) for size in ((7, 7), (8, 8), (1, 1), (13, 29))),
    ConvCase((1, 100, 5, 7, 7), (50, 100, 1, 1, 1)),
    ConvCase((1, 100, 15, 14), (60, 100, 1, 1), True, {"strides": [2, 2]}),
    ConvCase((1, 100, 14, 14), (60, 100, 1, 1), True, {"pads": [0, 1, 0, 0]}),
]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@each("case", MANY_CHANNELS)
def test_direct_is_the_definition_of_many_channels(case, instruction_set):
    case.check(conv(case, algorithm="direct", instruction_set=instruction_set), FLOAT32)


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
def test_number_of_threads_does_not_change_a_bit(algorithm):
    for case in (BIASED, ConvCase((3, 4, 20, 21), (10, 2, 3, 3), False, {"group": 2}), *MANY_CHANNELS[:5]):
        alone = conv(case, algorithm=algorithm, threads=1)
        for threads in (0, 2, 3, 64):
            assert np.array_equal(conv(case, algorithm=algorithm, threads=threads), alone)


def test_calls_from_many_threads_do_not_disturb_each_other():
    # Problems of different sizes share a thread's buffers.
    cases = [*random_cases(seed=3, count=12, max_products=500_000), *MANY_CHANNELS[:3]] * 4
    alone = [conv(case, algorithm="direct", threads=1) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda case: conv(case, algorithm="direct", threads=2), cases))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "shape"),
    [
        ((0, 3, 9, 8), (4, 3, 3, 3), (0, 4, 7, 6)),
        ((2, 3, 9, 8), (0, 3, 3, 3), (2, 0, 7, 6)),
        ((0, 3, 9), (4, 3, 3), (0, 4, 7)),
    ],
)
def test_empty_batch_or_filters_give_an_empty_output(algorithm, x_shape, w_shape, shape):
    case = ConvCase(x_shape, w_shape, True)
    assert _native.conv(*case.arrays(), algorithm=algorithm).shape == shape


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
@pytest.mark.parametrize("group", [1, 2])
def test_without_channels_every_output_is_its_bias(algorithm, group):
    case = ConvCase((2, 0, 9, 8), (4, 0, 3, 3), True, {"group": group})
    bias = case.arrays()[2]
    y = conv(case, algorithm=algorithm)
    assert np.array_equal(y, np.broadcast_to(bias[None, :, None, None], (2, 4, 7, 6)))


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan], ids=["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "case",
    [
        ConvCase((2, 3, 11, 12), (7, 3, 3, 2), True, {"pads": [1, 2, 0, 1], "strides": [2, 1]}),
        ConvCase((2, 3, 11, 60), (6, 1, 3, 2), True, {"group": 3, "pads": [1, 2, 0, 1], "strides": [1, 2]}),
        ConvCase((2, 19, 11, 12), (19, 1, 3, 2), True, {"group": 19, "pads": [1, 2, 0, 1]}),
    ],
    ids=case_id,
)
def test_what_is_not_finite_reaches_the_outputs_that_see_it_and_no_others(algorithm, special, case):
    x, w, b = case.arrays()
    x[1, 2, 4, 5] = special
    reference = convolve(x, w, b, **case.attributes)
    assert 0 < np.count_nonzero(~np.isfinite(reference)) < reference[1].size
    y = _native.conv(x, w, b, algorithm=algorithm, **case.attributes)
    finite = np.isfinite(reference)
    np.testing.assert_array_equal(y[~finite], reference[~finite])
    # The other outputs have no term of `special`.
    x[1, 2, 4, 5] = 0
    bound = 1.01 * (case.terms + 2) * FLOAT32 * sum_of_magnitudes(x, w, b, **case.attributes)
    assert np.all(np.abs(y[finite] - reference[finite]) <= bound[finite])


def test_padding_is_zero_and_not_multiplied():
    # Infinite weights that meet only padding must not give NaN in the reference.
    x = np.ones((1, 1, 1, 1), np.float32)
    w = np.full((1, 1, 3, 3), np.inf, np.float32)
    w[0, 0, 1, 1] = 2
    assert _native.conv(x, w, algorithm="reference", pads=[1, 1, 1, 1]).item() == 2


def test_float64_is_never_computed_in_float32():
    case = ConvCase((1, 3, 9, 8), (4, 3, 3, 3))
    x, w, _ = case.arrays(np.float64)
    assert _native.conv(x, w).dtype == np.float64
    with pytest.raises(ConvswapError, match=r"'direct' cannot compute .* it computes in float32 .* float64"):
        _native.conv(x, w, algorithm="direct")


def read_to_the_last_byte() -> None:
    """Compute with x, w and b that each end at a guard page: reading beyond them would end the process."""
    c_library = ctypes.CDLL(None, use_errno=True)

    def at_the_end(array: np.ndarray) -> np.ndarray:
        pages = -(-array.nbytes // mmap.PAGESIZE)
        memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        mappings.append(memory)
        everything = np.frombuffer(memory, np.uint8)
        guard = everything.ctypes.data + pages * mmap.PAGESIZE
        assert c_library.mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0
        moved = everything[pages * mmap.PAGESIZE - array.nbytes : pages * mmap.PAGESIZE]
        moved = moved.view(array.dtype).reshape(array.shape)
        moved[:] = array
        return moved

    mappings: list[mmap.mmap] = []
    depthwise = [
        ConvCase((1, channels, 7, size), (channels, 1, 3, 3), True, {"group": channels, **attributes})
        for channels in (2, 19)
        for size in (7, 18, 33, 61)
        for attributes in ({}, {"pads": [1, 1, 1, 1]}, {"strides": [2, 2]}, {"strides": [1, 3]})
    ]
    for case in (*CASES, *depthwise, *MANY_CHANNELS):
        x, w, b = (None if array is None else at_the_end(array) for array in case.arrays())
        for instruction_set in INSTRUCTION_SETS:
            _native.conv(x, w, b, algorithm="direct", instruction_set=instruction_set, **case.attributes)
        _native.conv(x, w, b, algorithm="reference", **case.attributes)


def test_nothing_is_read_beyond_the_tensors():
    program = f"import sys; sys.path[:0] = {sys.path!r}; import test_conv_cpu as t; t.read_to_the_last_byte()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_misfit_raises_before_anything_is_computed():
    x, w, b = BIASED.arrays()
    with pytest.raises(
        ConvswapError, match=r"^bias of shape \[6\]: expected \[7\], one value per output channel$"
    ):
        _native.conv(x, w, b[:6])
    with pytest.raises(ConvswapError, match=r"^bias of shape \[7, 1\]: expected \[7\]"):
        _native.conv(x, w, b[:, None])
    with pytest.raises(ConvswapError, match=r"^weights of shape .* as many dimensions as the input of shape"):
        _native.conv(x.reshape(2, 3, 72), w, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "direkt"}, "'direkt'; did you mean 'direct'?"),
        ({"algorithm": "nothing"}, "'nothing'; known: direct reference quantised auto"),
        ({"algorithm": "naive"}, "algorithm 'naive' is one of the device cuda, and this is the device cpu"),
        ({"algorithm": "direct", "instruction_set": "avx3"}, "unknown instruction set 'avx3'; "),
        ({"algorithm": "reference", "instruction_set": "baseline"}, "expected the algorithm 'direct'"),
    ],
)
def test_unknown_algorithm_or_instruction_set_is_named_with_the_nearest(options, message):
    x, w, b = BIASED.arrays()
    with pytest.raises(ConvswapError) as raised:
        _native.conv(x, w, b, **options)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w: (x.astype(np.float64), w), "x is float64: expected w and b to be the same"),
        (lambda x, w: (x, w.astype(np.int32)), "unknown element type 'int32'"),
        (lambda x, w: (x[:, :, ::2], w), "x is not C-contiguous"),
        (lambda x, w: (x, np.asfortranarray(w)), "w is not C-contiguous"),
    ],
    ids=["mixed", "int32", "strided", "column-major"],
)
def test_other_arrays_are_refused_and_not_converted(change, message):
    x, w, _ = BIASED.arrays()
    with pytest.raises(ConvswapError, match=message):
        _native.conv(*change(x, w))
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _native.conv(x.tolist(), w)


def test_planner_takes_direct_for_float32_and_reference_for_float64():
    assert _native.choose(_native.Problem((1, 3, 9, 8), (4, 3, 3, 3)), "cpu") == "direct"
    assert _native.choose(_native.Problem((1, 3, 9, 8), (4, 3, 3, 3), type="float64"), "cpu") == "reference"


def test_plan_says_what_it_will_do():
    problem = _native.Problem((1, 3, 9, 8), (4, 3, 3, 3))
    assert INSTRUCTION_SETS[0] in _native.describe_plan(problem, "cpu")
    assert "float64" in _native.describe_plan(problem, "cpu", "reference")
    for name in ("direct", "reference"):
        assert _native.why_not(problem, name, "cpu") == ""


def test_catalog_names_every_algorithm_once_and_the_cpu_s_in_order():
    entries = [(entry.device, entry.name) for entry in _native.catalog()]
    assert len(entries) == len(set(entries))
    fast = [entry.name for entry in _native.catalog() if entry.device == "cpu" and not entry.by_name_alone]
    assert fast == ["direct", "reference", "quantised"]
