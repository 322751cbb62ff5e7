"""The CUDA algorithms against the float64 reference, and their reasons for problems that they do not support.

Tolerances. TF32 and scaled float16 keep 11 bits, so an operand has an error of up to 2^-11. Over many random
terms the relative L2 error is about 3e-4; 6e-4 allows for few terms. `naive` computes in float32, and the
algorithms on tensor cores are as accurate in precision ieee: 1e-5 allows sums of thousands of terms. Every
output is also within the bound of its terms' rounding errors.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from conv_cases import CASES, ConvCase, case_id, convolve, random_cases, sum_of_magnitudes
from convswap import _native
from convswap.errors import ConvswapError
from convswap.timing.suites import SUITES
from each_case import each
from repeats import repeats, sample_of

TF32_OPERAND = 2.0**-11
# Relative error of an addition in float32; tensor cores truncate, with up to four times the error.
FLOAT32 = 2.0**-24
TENSOR_CORE = 2.0**-22
RELATIVE_L2 = {
    "implicit_gemm": 6e-4,
    "toeplitz": 6e-4,
    "few_channels": 6e-4,
    "many_channels": 6e-4,
    "pointwise": 6e-4,
    "sliced_k": 6e-4,
    "tiled": 1e-5,
    "naive": 1e-5,
}

# These support every precision.
TENSOR_CORE_ALGORITHMS = ("implicit_gemm", "toeplitz", "few_channels")
ALGORITHMS = (*TENSOR_CORE_ALGORITHMS, "many_channels", "sliced_k", "tiled", "naive")
on_tensor_cores = pytest.mark.parametrize("algorithm", TENSOR_CORE_ALGORITHMS)
EPILOGUES = {
    "alone": {},
    "Relu": {"activation": "Relu"},
    "LeakyRelu": {"activation": "LeakyRelu", "activation_alpha": 0.25},
    "Relu and pool": {
        "activation": "Relu",
        "pool": "MaxPool",
        "pool_kernel_shape": [2, 2],
        "pool_strides": [2, 2],
    },
}
# Draws are also planned, without a card, for capabilities with other tilings than the card in use.
CAPABILITIES = (80, 86, 90, 120)


def problem_of(case: ConvCase, **options) -> _native.Problem:
    return _native.Problem(case.x_shape, case.w_shape, case.has_bias, **options, **case.attributes)


def why_skipped(algorithm: str, problem: _native.Problem) -> str:
    """Return why a test may skip the problem; "" if the algorithm must compute it."""
    reason = _native.why_not(problem, algorithm, "cuda")
    # implicit_gemm needs whole images in shared memory.
    is_too_large = algorithm == "implicit_gemm" and ("do not fit" in reason or "its sums take" in reason)
    other_reasons = ("in precision ieee", "depthwise convolutions of float32")
    may_skip = is_too_large or any(words in reason for words in other_reasons)
    return f"{algorithm}: {reason}" if may_skip else ""


def run(algorithm: str, x, w, b, attributes, *, precision: str = "tf32") -> np.ndarray:
    """Return the output of the algorithm on the card; elements that it does not write are NaN."""
    problem = _native.Problem(x.shape, w.shape, b is not None, precision=precision, **attributes)
    if reason := why_skipped(algorithm, problem):
        pytest.skip(reason)
    y = _native.DeviceArray(problem.output_shape)
    y.poison()
    on_card = [None if array is None else _native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    _native.conv_device(*on_card, y, algorithm=algorithm, precision=precision, **attributes)
    return y.to_numpy()


def rounding_of(algorithm: str, precision: str) -> tuple[float, float]:
    """Return the relative error of rounding an operand, and of an addition."""
    is_on_tensor_cores = algorithm in (*TENSOR_CORE_ALGORITHMS, "many_channels", "pointwise", "sliced_k")
    operand = TF32_OPERAND if is_on_tensor_cores and precision == "tf32" else 0.0
    return operand, TENSOR_CORE if is_on_tensor_cores else FLOAT32


def check(algorithm: str, case: ConvCase, precision: str = "tf32") -> None:
    x, w, b = case.arrays()
    y = run(algorithm, x, w, b, case.attributes, precision=precision)
    wide = [None if array is None else array.astype(np.float64) for array in (x, w, b)]
    # NumPy's reference is slow; test_conv_cpu.py compares it with this one.
    reference = _native.conv(*wide, algorithm="reference", **case.attributes)
    sizes = [None if array is None else np.abs(array) for array in wide]
    magnitude = _native.conv(*sizes, algorithm="reference", **case.attributes)
    operand, unit = rounding_of(algorithm, precision)
    error = np.abs(y - reference)
    bound = 1.01 * (2 * operand + (case.terms + 2) * unit) * magnitude
    wrong = np.argwhere(~(error <= bound))
    plan = _native.describe_plan(problem_of(case), "cuda", algorithm)
    assert wrong.size == 0, (
        f"{case}: {len(wrong)} of {y.size} outputs are wrong, {np.count_nonzero(np.isnan(y))} of them NaN, "
        f"the first at {wrong[0].tolist()}: {y[tuple(wrong[0])]}, expected {reference[tuple(wrong[0])]}; "
        f"plan: {plan}"
    )
    relative = np.linalg.norm(error) / np.linalg.norm(reference)
    # The relative L2 error of a few outputs of one or two terms is no average.
    if y.size * case.terms > 2000:
        limit = RELATIVE_L2[algorithm if operand > 0 else "naive"]
        assert relative <= limit, f"{case}: relative L2 error {relative:.2g}; plan: {plan}"


def check_each(algorithm: str, cases, precision: str = "tf32") -> None:
    """Check the cases that the algorithm supports; skip if there are none."""
    reasons = []
    for case in cases:
        if reason := why_skipped(algorithm, problem_of(case, precision=precision)):
            reasons.append(reason)
        else:
            reasons.append("")
            check(algorithm, case, precision)
    if all(reasons):
        pytest.skip(reasons[0])


def supported(algorithm: str, cases):
    return [case for case in cases if not _native.why_not(problem_of(case), algorithm, "cuda")]


@pytest.mark.gpu
@each("case", CASES)
def test_naive_is_the_definition_for_every_attribute_and_rank(case):
    check("naive", case)


@pytest.mark.gpu
@on_tensor_cores
@each("case", [case for case in CASES if len(case.x_shape) < 5])
def test_tensor_cores_give_the_definition_for_every_attribute(case, algorithm):
    check(algorithm, case)


@pytest.mark.gpu
@on_tensor_cores
@each("case", [case for case in CASES if len(case.x_shape) < 5])
def test_tensor_cores_give_the_definition_in_precision_ieee(case, algorithm):
    check(algorithm, case, "ieee")


@pytest.mark.gpu
@on_tensor_cores
@each("layer", SUITES["course"])
def test_tensor_cores_are_as_accurate_as_float32_in_precision_ieee(layer, algorithm):
    assert relative_l2_in_ieee(algorithm, ConvCase(layer.input_shape(4), layer.weight_shape)) <= 1e-6


@pytest.mark.gpu
@pytest.mark.algorithm("few_channels")
def test_long_sums_stay_accurate_in_precision_ieee():
    # Tensor cores truncate sums, so few_channels computes a few channels in each pass.
    case = ConvCase((2, 96, 20, 22), (24, 96, 5, 5))
    problem = problem_of(case, precision="ieee")
    assert "passes" in _native.describe_plan(problem, "cuda", "few_channels")
    assert relative_l2_in_ieee("few_channels", case) <= 1e-6
    assert relative_l2_in_ieee(_native.choose(problem, "cuda"), case) <= 1e-6


@pytest.mark.parametrize(
    ("algorithm", "capability", "longest", "too_long", "reason"),
    [
        # Rows of 11 taps; an mma takes four groups of four.
        ("few_channels", 90, (1, 64, 11), (1, 65, 11), "are too long for its precision ieee"),
        ("few_channels", 80, (1, 32, 11), (1, 33, 11), "are too long for its precision ieee"),
        # A core matrix has eight channels, a wgmma two core matrices; wgmmas are issued in twos.
        (
            "toeplitz",
            90,
            (704, 1, 1),
            (705, 1, 1),
            "its sums take more than 44 products of the tensor core, the most for precision ieee",
        ),
    ],
)
def test_sums_too_long_for_precision_ieee_are_declined(algorithm, capability, longest, too_long, reason):
    def why_not(filter_shape, precision):
        problem = _native.Problem((2, filter_shape[0], 70, 20), (4, *filter_shape), precision=precision)
        return _native.why_not(problem, algorithm, "cuda", compute_capability=capability)

    assert why_not(longest, "ieee") == why_not(too_long, "tf32") == ""
    assert reason in why_not(too_long, "ieee")


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_toeplitz_tells_long_sums_from_a_matrix_that_does_not_fit(precision):
    def why_not(filters, channels):
        problem = _native.Problem((2, channels, 70, 20), (filters, channels, 1, 1), precision=precision)
        return _native.why_not(problem, "toeplitz", "cuda", compute_capability=90)

    assert why_not(512, 704).startswith("its matrix and its smallest tile do not fit")
    assert why_not(4, 4097).startswith("its sums take more than")


def plan_of_implicit_gemm(x_shape, w_shape, **attributes) -> str:
    return _native.describe_plan(_native.Problem(x_shape, w_shape, **attributes), "cuda", "implicit_gemm")


@pytest.mark.gpu
@pytest.mark.algorithm("implicit_gemm")
def test_implicit_gemm_pairs_rows_where_that_saves_wgmmas_or_frees_memory_for_results():
    def plan(filters, size, **attributes):
        return plan_of_implicit_gemm((2048, 4, size, size), (filters, 4, 7, 7), **attributes)

    # Five pairs of the rows of four folds, by seven taps, two to a wgmma.
    assert "18 of 18 steps in registers; two rows in a vector" in plan(16, 40)
    # With one plane of rows, seven rows by four pairs of taps. With two planes, four pairs of rows by seven
    # taps are as many.
    for strides in ([1, 1], [2, 1]):
        one_row = plan(64, 20, strides=strides)
        assert "14 of 14 steps" in one_row and "rows in a vector" not in one_row

    # Half steps: the full channel block takes 30. The half-filled block takes 15 with paired rows, and 18
    # with paired columns. Both sums, 45 and 48, are padded to 24 steps. In float32, paired rows leave memory
    # for a second result buffer. In float16 two images' results fit either way.
    def conv2(element_type):
        return plan_of_implicit_gemm((2048, 12, 33, 33), (24, 12, 5, 5), type=element_type)

    assert "24 of 24 steps in registers; two rows in a vector" in conv2("float32")
    assert "24 of 24 steps" in conv2("float16") and "rows in a vector" not in conv2("float16")


def tiling_of_implicit_gemm(x_shape, w_shape, **attributes) -> str:
    problem = _native.Problem(x_shape, w_shape, **attributes)
    return _native.alternatives(problem, "implicit_gemm", 1, compute_capability=90)[0]["tiling"]


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "loads_and_results"),
    [
        # With one load in flight, each of six chunks of channels would wait for its load.
        ((2048, 24, 28, 28), (24, 24, 3, 3), "stages 3 buffers 1"),
        # Three chunks too, although two would leave memory for more double-buffered filters: 2 to 4 % slower.
        ((2048, 12, 33, 33), (24, 12, 5, 5), "stages 3 buffers 1"),
        # One chunk, for which two loads are enough.
        ((2048, 4, 40, 40), (16, 4, 7, 7), "stages 2 buffers 1"),
        # Small results leave memory for both.
        ((2048, 8, 32, 32), (16, 8, 3, 3), "stages 3 buffers 2"),
    ],
)
def test_implicit_gemm_gives_memory_to_loads_or_to_results(x_shape, w_shape, loads_and_results):
    assert tiling_of_implicit_gemm(x_shape, w_shape).endswith(loads_and_results)


def test_implicit_gemm_takes_narrower_tiles_where_fewer_columns_are_no_outputs():
    def columns(size, w_shape):
        tiling = tiling_of_implicit_gemm((10_000, w_shape[1], size, size), w_shape)
        return 8 * int(tiling.split("tiles ")[1].split(" ")[0])

    # With two folds 13 * 33 + 27 = 456 columns, four tiles of 120 or of 128.
    assert columns(33, (24, 12, 7, 7)) == 120
    # 14 * 33 + 29 = 491 columns, more than four tiles of 120.
    assert columns(33, (24, 12, 5, 5)) == 128
    # With four folds 8 * 40 + 34 = 354 columns, three tiles.
    assert columns(40, (16, 4, 7, 7)) == 120


@pytest.mark.gpu
@pytest.mark.algorithm("implicit_gemm")
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "double_buffered_filters"),
    [
        ((4, 41, 41), (17, 4, 7, 7), 15),
        # Two blocks of filters, 34 and 33.
        ((3, 33, 33), (67, 3, 5, 5), 16),
    ],
)
def test_implicit_gemm_stores_double_buffered_results_at_any_alignment(
    x_shape, w_shape, double_buffered_filters, precision
):
    # At least three images for each block, so that it reuses each buffer. The results of an image are no
    # multiple of four, so each image has another alignment.
    case = ConvCase((repeats(1031, minimum=400), *x_shape), w_shape, True)
    if precision == "tf32":
        plan = plan_of_implicit_gemm(case.x_shape, w_shape)
        assert f"1 buffer for results and one for {double_buffered_filters} filters" in plan
    check("implicit_gemm", case, precision)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "options", "reason"),
    [
        ((8, 1, 72, 72), (12, 1, 7, 7), {}, "its images and their results do not fit into the "),
        ((8, 100, 9, 9), (16, 100, 5, 5), {}, "its sums take more than 128 products of the tensor core"),
        (
            (8, 40, 9, 9),
            (16, 40, 5, 5),
            {"precision": "ieee"},
            "its sums take more than 44 products of the tensor core, the most for precision ieee",
        ),
        # Rows cannot be paired, since 64 filters have one fold, nor dilated columns.
        (
            (8, 12, 16, 20),
            (64, 12, 7, 7),
            {"precision": "ieee", "dilations": [1, 2]},
            "its sums take more than 44 products of the tensor core, the most for precision ieee",
        ),
        # 44 wgmmas with paired rows, 46 without.
        (
            (16, 1, 40, 40),
            (16, 1, 15, 11),
            {"precision": "ieee"},
            "its images and their results do not fit into the ",
        ),
        ((8, 1, 0), (2, 1, 2), {"pads": [2, 1]}, "the input has no pixels"),
    ],
)
def test_implicit_gemm_says_why_it_cannot(x_shape, w_shape, options, reason):
    problem = _native.Problem(x_shape, w_shape, **options)
    why_not = _native.why_not(problem, "implicit_gemm", "cuda", compute_capability=90)
    assert why_not.startswith(reason)
    assert _native.choose(problem, "cuda", compute_capability=90) != "implicit_gemm"


def relative_l2_in_ieee(algorithm, case):
    y = run(algorithm, *case.arrays(), {}, precision="ieee")
    return np.linalg.norm(y - case.reference) / np.linalg.norm(case.reference)


@pytest.mark.gpu
@pytest.mark.algorithm("toeplitz")
@pytest.mark.parametrize(
    ("size", "filters", "min_images", "is_copied"),
    [(70, 12, 48, False), (57, 7, 88, True)],
    ids=["loads", "copies"],
)
def test_tiles_of_toeplitz_that_overlap_store_each_result_once(size, filters, min_images, is_copied):
    rng = np.random.default_rng(3)
    images = repeats(1200, minimum=min_images)
    x = rng.standard_normal((images, 1, size, size), dtype=np.float32)
    w = rng.standard_normal((filters, 1, 5, 5), dtype=np.float32)
    b = rng.standard_normal(filters, dtype=np.float32)
    # Two tiles compute rows 17, 34 and 51 of the outputs of 70 rows, with 48 images rows 13, 26, 39 and 52;
    # of the outputs of 57 rows row 26, with 88 images rows 13, 26 and 39. A tile with an infinity or a NaN is
    # computed by the naive sum, a tile of values with a wide range in several binade windows; both must
    # store only their own rows.
    x[5, 0, 17, 3], x[images // 2, 0, 30, size - 10], x[-1, 0, 52, 30] = np.inf, np.nan, -np.inf
    x[9, 0, 36:41] *= 1e-20
    x[images * 3 // 4, 0, 17] *= 1e25
    y = run("toeplitz", x, w, b, {})
    plan = _native.describe_plan(_native.Problem(x.shape, w.shape, True), "cuda", "toeplitz")
    assert "1 shared with the next tile" in plan
    assert ("input by TMA" in plan) == is_copied
    reference = run("naive", x, w, b, {})
    finite = np.isfinite(reference)
    np.testing.assert_array_equal(y[~finite], reference[~finite])
    magnitude = run("naive", np.nan_to_num(np.abs(x), posinf=0.0), np.abs(w), np.abs(b), {})
    assert (
        np.abs(y[finite] - reference[finite])
        <= 1.01 * (2 * TF32_OPERAND + 27 * TENSOR_CORE) * magnitude[finite]
    ).all()
    for _ in range(3):
        assert run("toeplitz", x, w, b, {}).tobytes() == y.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("stride", [1, 2])
def test_rows_below_an_image_are_zeros_whatever_a_tile_held_before(stride, algorithm):
    # Enough images that every block computes several tiles.
    attributes = {"pads": [0, 0, 3, 0], "strides": [stride, 1]}
    shapes = ((1500, 1, 19, 20), (6, 1, 5, 5)), ((700, 4, 26, 21), (6, 4, 8, 5))
    check_each(algorithm, [ConvCase(shape, weights, True, attributes) for shape, weights in shapes])


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("pads", [[0, 9, 0, 0], [0, 40, 0, 40]], ids=["before", "around"])
def test_tiles_in_the_padding_alone_are_zeros_whatever_shared_memory_held(pads, precision, algorithm):
    if reason := why_skipped(algorithm, _native.Problem((1, 8, 8, 8), (16, 8, 5, 5), precision=precision)):
        pytest.skip(reason)
    # Enough images to fill the shared memory of the whole card with ordinary numbers.
    before = ConvCase((1500, 8, 32, 32), (16, 8, 5, 5))
    # Few enough pixels that tiles are narrow.
    shapes = ((3, 1, 2, 24), (1, 1, 1, 1)), ((1, 49, 25, 12), (1, 49, 7, 1))

    def each_after_ordinary_numbers():
        for shape, weights in shapes:
            run(algorithm, *before.arrays(), {}, precision=precision)
            yield ConvCase(shape, weights, False, {"pads": pads})

    check_each(algorithm, each_after_ordinary_numbers(), precision)


@pytest.mark.gpu
@pytest.mark.parametrize("filters", [1, 2, 3, 4, 6, 8, 12])
@on_tensor_cores
def test_tensor_cores_give_the_definition_for_every_remainder_of_folded_rows(filters, algorithm):
    cases = [
        case
        for height, width in sample_of(itertools.product(range(7, 18), (12, 14, 15)))
        for case in (
            ConvCase((3, 1, height, width), (filters, 1, 5, 3), True),
            ConvCase((2, 2, height, width), (filters, 2, 3, 3), False, {"strides": [2, 1]}),
        )
    ]
    check_each(algorithm, cases)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@each("x_spread, w_spread", [(40, 0), (0, 40), (40, 40), (100, 20), (0, 120)])
@each("epilogue", EPILOGUES.values())
@on_tensor_cores
def test_values_that_span_hundreds_of_binades_keep_their_accuracy(
    x_spread, w_spread, precision, epilogue, algorithm
):
    case = ConvCase((4, 2, 20, 21), (9, 2, 3, 3), True)
    check_binades(case, x_spread, w_spread, precision, epilogue, algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@on_tensor_cores
def test_what_a_window_of_binades_adds_may_be_subnormal(precision, algorithm):
    x, w = np.zeros((1, 1, 8, 8), np.float32), np.full((1, 1, 1, 1), 2.0**-60, np.float32)
    x[0, 0, 2, 4], x[0, 0, 3, 6] = 1.0, 2.0**-80
    assert np.array_equal(run(algorithm, x, w, None, {}, precision=precision), x * w)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@on_tensor_cores
def test_what_is_there_before_the_next_window_of_the_weights_may_be_subnormal(precision, algorithm):
    x, w = np.zeros((1, 1, 8, 8), np.float32), np.ldexp(np.float32(1), [[[[0, -28, -39]]]]).astype(np.float32)
    x[0, 0, 0, 0], x[0, 0, 5, 5] = 1.0, 2.0**-110
    expected = sum(x[..., s : s + 6] * w[0, 0, 0, s] for s in range(3))
    assert expected[0, 0, 5, 4] == 2.0**-138 and expected[0, 0, 5, 3] == 2.0**-149
    assert np.array_equal(run(algorithm, x, w, None, {}, precision=precision), expected)


@pytest.mark.gpu
@pytest.mark.algorithm("few_channels")
def test_several_passes_over_many_binades_keep_their_accuracy_in_precision_ieee():
    case = ConvCase((2, 96, 12, 14), (5, 96, 5, 5), True)
    assert "passes" in _native.describe_plan(problem_of(case, precision="ieee"), "cuda", "few_channels")
    for activation in ("None", "Relu"):  # after the last pass only
        check_binades(case, 60, 40, "ieee", {"activation": activation}, "few_channels")


@pytest.mark.gpu
@pytest.mark.algorithm("few_channels")
@pytest.mark.parametrize("activation", ["SiLU", "HardSwish"])
@each("spread, precision", [(0, "ieee"), (0, "tf32"), (24, "ieee"), (24, "tf32")])
def test_sums_of_several_passes_and_windows_are_activated_once(spread, precision, activation):
    # Channels with a spread that the weights undo: sums of about 1 from numbers that no binade window of
    # float16 holds.
    case = ConvCase((2, 96, 12, 14), (5, 96, 5, 5), True)
    x, w, b = case.arrays()
    exponents = np.random.default_rng(5).integers(-spread, spread + 1, (1, 96, 1, 1))
    x, w = np.ldexp(x, exponents).astype(np.float32), np.ldexp(w, -exponents - 5).astype(np.float32)
    epilogue = {"activation": activation}
    y = run("few_channels", x, w, b, epilogue, precision=precision)
    assert np.mean(np.abs(true_sums(x, w, b)) < 3) > 0.5
    check_each_output(case, y, x, w, b, precision, epilogue)


def true_sums(x, w, b) -> np.ndarray:
    return _native.conv(*(each.astype(np.float64) for each in (x, w, b)), algorithm="reference")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@each("channels", [1, 4, 6, 12, 30])
@on_tensor_cores
def test_images_may_have_other_ranges_than_those_before_them(channels, precision, algorithm):
    # On an H200, blocks of one image each take every 132nd image; with other blocks neighbours differ more.
    blocks = 132
    case = ConvCase((repeats(10, minimum=4) * blocks, channels, 14, 15), (9, channels, 3, 3), True)
    x, w, b = case.arrays()
    random = np.random.default_rng(4)
    exponents = random.choice([0, 0, 20, -40, -70], len(x))
    for i in range(blocks, len(x)):
        if random.random() < 0.6:
            exponents[i] = exponents[i - blocks]
    # All of an image's values or half of them.
    scaled_share = random.choice([0.5, 1.0], (len(x), 1, 1, 1))
    is_scaled = random.random(x.shape) < scaled_share
    x = np.where(is_scaled, np.ldexp(x, exponents[:, None, None, None]), x).astype(np.float32)
    not_finite = random.random(len(x)) < 0.2
    x[not_finite, 0, 3, 4] = np.inf
    epilogue = {"activation": "Relu"} if channels in (4, 12) else {}
    y = run(algorithm, x, w, b, epilogue, precision=precision)
    assert not np.isfinite(y[not_finite]).all(axis=(1, 2, 3)).any()
    if epilogue:
        assert not np.any(y[not_finite] < 0)
    check_each_output(case, y[~not_finite], x[~not_finite], w, b, precision, epilogue)


def check_binades(case, x_spread, w_spread, precision, epilogue, algorithm):
    random = np.random.default_rng(3)
    x, w, b = case.arrays()
    x = np.ldexp(x, random.integers(-x_spread, x_spread + 1, x.shape)).astype(np.float32)
    w = np.ldexp(w, random.integers(-w_spread, min(w_spread, 120 - x_spread) + 1, w.shape)).astype(np.float32)
    y = run(algorithm, x, w, b, epilogue, precision=precision)
    check_each_output(case, y, x, w, b, precision, epilogue)


def check_each_output(case, y, x, w, b, precision, epilogue):
    wide = [array.astype(np.float64) for array in (x, w, b)]
    reference = _native.conv(*wide, algorithm="reference", **epilogue)
    # Only SiLU and HardSwish enlarge a difference, by 1.5 at most. A pool's bound is its largest magnitude.
    is_swish = epilogue.get("activation") in ("SiLU", "HardSwish")
    magnitude = _native.conv(
        *(np.abs(array) for array in wide), algorithm="reference", **({} if is_swish else epilogue)
    ) * (1.5 if is_swish else 1.0)
    operand = TF32_OPERAND if precision == "tf32" else 0.0
    # Plus the smallest float32 for each term that underflows.
    bound = 1.01 * (2 * operand + (case.terms + 2) * TENSOR_CORE) * magnitude + 2.0**-149 * case.terms
    assert np.all(np.abs(y - reference) <= bound)


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", EPILOGUES.values(), ids=EPILOGUES)
@on_tensor_cores
def test_one_value_far_below_the_others_does_not_slow_a_layer_down(epilogue, algorithm):
    case = ConvCase((repeats(128), 64, 56, 56), (64, 64, 3, 3), True, {"pads": [1, 1, 1, 1]})
    x, w, b = case.arrays()
    small = x.copy()
    small[-1, 7, 20, 30] = 1e-20
    attributes = case.attributes | epilogue
    problem = _native.Problem(x.shape, w.shape, True, **attributes)
    if reason := _native.why_not(problem, algorithm, "cuda"):
        pytest.skip(f"{algorithm}: {reason}")
    y = _native.DeviceArray(problem.output_shape)
    weights, bias = _native.DeviceArray.from_numpy(w), _native.DeviceArray.from_numpy(b)
    inputs = [_native.DeviceArray.from_numpy(array) for array in (x, small)]

    def milliseconds(input_array: _native.DeviceArray) -> float:
        return _native.conv_device(
            input_array, weights, bias, y, algorithm=algorithm, runs=repeats(20), **attributes
        )

    ordinary, with_small = ([milliseconds(array) for _ in range(repeats(5))] for array in inputs)
    # The value's tile takes a few times as long as another, and a multiprocessor computes several tiles. By
    # the naive sum, on one multiprocessor, the tile would take milliseconds.
    assert min(with_small) < 4 * min(ordinary)


@pytest.mark.gpu
def test_naive_is_the_definition_for_many_draws():
    for case in random_cases(seed=4, count=repeats(150)):
        check("naive", case)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(10))
@on_tensor_cores
def test_tensor_cores_give_the_definition_for_many_draws(seed, algorithm):
    drawn = list(random_cases(seed=100 + seed, count=40, ranks=(1, 2, 2)))
    cases = supported(algorithm, drawn)
    # The algorithms support up to 16 channels and rows of up to 11 taps, except for the largest filter
    # reaches.
    assert len(cases) >= 0.9 * len(drawn)
    for case in sample_of(cases):
        check(algorithm, case)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@each("layer", SUITES["course"])
@each("batch", [1, 3])
def test_every_algorithm_is_the_definition_on_every_course_layer(layer, batch, algorithm):
    check(algorithm, ConvCase(layer.input_shape(batch), layer.weight_shape))


@pytest.mark.gpu
@on_tensor_cores
@each("layer", SUITES["course"])
def test_tensor_cores_give_the_definition_where_blocks_take_several_tiles(layer, algorithm):
    # More images than resident blocks of any card, a prime number; racecheck gets two for each
    # multiprocessor.
    check(algorithm, ConvCase(layer.input_shape(repeats(1031, minimum=307)), layer.weight_shape))


# Output widths and heights with every remainder by the widest store, with and without padding.
@pytest.mark.gpu
@pytest.mark.parametrize("height", [7, 8, 9, 10])
@each("width", [6, 7, 8, 9, 10, 30, 31, 33, 34])
@on_tensor_cores
def test_tensor_cores_store_every_column_whatever_the_alignment(width, height, algorithm):
    cases = [
        ConvCase(
            (3, channels, height, width),
            (5, channels, kernel, kernel),
            pad == 1,
            {"pads": [pad, pad, pad, pad]},
        )
        for channels, kernel, pad in itertools.product((1, 2, 3), (1, 3, 4, 5), (0, 1))
        if min(width, height) + 2 * pad >= kernel
    ]
    check_each(algorithm, cases)


@pytest.mark.gpu
@each(
    "case",
    [
        ConvCase((1, 16, 40, 3001), (20, 16, 5, 5), True, {"pads": [2, 2, 2, 2]}),
        ConvCase((2, 16, 11, 1999), (9, 16, 11, 11)),
        ConvCase((1, 16, 33, 2050), (16, 16, 7, 11), False, {"strides": [2, 3], "pads": [3, 0, 3, 5]}),
        ConvCase((1, 8, 9, 20_002), (4, 8, 3, 3)),
        ConvCase((1, 3, 2000, 37), (64, 3, 7, 7), True, {"strides": [2, 2]}),
        ConvCase((2, 3, 100_001), (17, 3, 11), True, {"pads": [5, 5]}),
        ConvCase((1, 1, 1_000_003), (2, 1, 9), False, {"dilations": [7]}),
        ConvCase((1, 3, 227, 227), (96, 3, 11, 11), True, {"strides": [4, 4]}),
        ConvCase((1, 3, 224, 224), (64, 3, 7, 7), False, {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
        # many_channels has rows of two phases in a stage; the last stage is partial.
        ConvCase((2, 32, 256, 256), (64, 32, 3, 3), False, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
)
@on_tensor_cores
def test_tensor_cores_give_the_definition_where_images_are_cut_into_tiles(case, algorithm):
    check(algorithm, case)


@pytest.mark.gpu
@pytest.mark.algorithm("few_channels")
@pytest.mark.parametrize(
    "case",
    [
        ConvCase((2, 400, 20, 22), (40, 400, 3, 3), True, {"pads": [1, 1, 1, 1]}),
        ConvCase((2, 513, 9, 12), (70, 513, 3, 3), True),
        ConvCase((3, 600, 14, 15), (34, 300, 5, 5), True, {"group": 2, "strides": [2, 2]}),
        ConvCase((1, 64, 80, 80), (64, 64, 11, 11), True, {"strides": [8, 8]}),
    ],
    ids=case_id,
)
def test_few_channels_takes_several_passes_where_the_channels_do_not_fit(case):
    assert "passes" in _native.describe_plan(problem_of(case), "cuda", "few_channels")
    check("few_channels", case)


@pytest.mark.gpu
@on_tensor_cores
def test_tensor_cores_give_the_definition_for_every_filter_width_and_stride(algorithm):
    cases = [
        ConvCase((2, 2, 13, 45), (6, 2, 2, width), False, {"strides": [1, stride], "pads": [0, 1, 1, 2]})
        for width, stride in sample_of(itertools.product(range(1, 12), (1, 2, 3, 4)))
    ]
    check_each(algorithm, cases)


@pytest.mark.gpu
@on_tensor_cores
def test_tensor_cores_give_the_definition_for_every_number_of_channels_and_filter_rows(algorithm):
    cases = [
        ConvCase((2, channels, 15, 22), (5, channels, rows, 3), True)
        for channels, rows in sample_of(itertools.product(range(1, 17), range(1, 12)))
    ]
    check_each(algorithm, cases)


@pytest.mark.gpu
@on_tensor_cores
def test_tensor_cores_give_the_definition_for_every_number_of_filters(algorithm):
    cases = [ConvCase((2, 3, 9, 14), (filters, 3, 3, 3), True) for filters in sample_of(range(1, 71))]
    check_each(algorithm, cases)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@each(
    "case",
    [
        ConvCase((65_536, 1, 8, 8), (4, 1, 3, 3), True),
        ConvCase((65_537, 1, 1, 5), (1, 1, 1, 2)),
        ConvCase((2, 1000, 5, 6), (1000, 1, 3, 3), True, {"group": 1000, "pads": [1, 1, 1, 1]}),
        ConvCase((1, 65_535, 1, 4), (65_535, 1, 1, 3), False, {"group": 65_535}),
        ConvCase((1, 4, 6, 6), (2000, 4, 3, 3), True),
        ConvCase((1, 96, 20, 20), (192, 6, 3, 3), False, {"group": 16, "pads": [1, 1, 1, 1]}),
    ],
)
def test_large_batches_many_groups_and_many_filters_are_the_definition(case, algorithm):
    if algorithm == "toeplitz" and case.w_shape[0] == 2000:
        pytest.skip("its matrix of so many filters does not fit into shared memory")
    if algorithm == "many_channels" and case.attributes.get("group", 1) > 1000:
        assert "padded" in _native.why_not(problem_of(case), algorithm, "cuda")
        pytest.skip("it is for groups of more filters and channels")
    batch, channels, *image = case.x_shape
    filters, *filter_ = case.w_shape
    attributes = dict(case.attributes)
    if attributes.get("group") == channels:
        channels = filters = attributes["group"] = repeats(channels, minimum=1000)
    x_shape, w_shape = (repeats(batch), channels, *image), (filters, *filter_)
    check(algorithm, dataclasses.replace(case, x_shape=x_shape, w_shape=w_shape, attributes=attributes))


@pytest.mark.gpu
def test_more_groups_than_a_grid_has_rows_are_left_to_another_algorithm():
    case = ConvCase((1, 65_536, 1, 4), (65_536, 1, 1, 3), False, {"group": 65_536})
    for algorithm in TENSOR_CORE_ALGORITHMS:
        assert "groups" in _native.why_not(problem_of(case), algorithm, "cuda")
    assert _native.choose(problem_of(case), "cuda") == "naive"
    check("naive", case)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@each(
    "case",
    [
        ConvCase((3, 1, 13, 14), (5, 1, 5, 5), True),
        ConvCase((3, 1, 13, 14), (5, 1, 3, 3), False, {"pads": [1, 1, 1, 1]}),
        ConvCase((3, 3, 13, 15), (18, 3, 5, 4), True, {"pads": [2, 1, 0, 2]}),
        ConvCase((3, 2, 13, 14), (5, 2, 3, 5), False, {"strides": [2, 3]}),
        ConvCase((3, 2, 13, 14), (5, 2, 3, 3), False, {"strides": [1, 2], "pads": [0, 1, 0, 1]}),
        ConvCase((3, 2, 13, 14), (5, 2, 3, 3), False, {"dilations": [2, 3]}),
        ConvCase((3, 4, 13, 14), (6, 2, 4, 3), True, {"group": 2}),
        ConvCase((3, 5, 12, 12), (6, 5, 1, 1)),
        ConvCase((3, 2, 40), (6, 2, 7), True, {"pads": [3, 3]}),
    ],
)
@each("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_what_is_not_finite_reaches_the_outputs_that_see_it_and_no_others(
    precision, case, special, algorithm
):
    random = np.random.default_rng(5)
    for _ in range(8):
        x, w, b = case.arrays()
        index = tuple(random.integers(0, size) for size in x.shape)
        x[index] = special
        reference = convolve(x, w, b, **case.attributes)
        y = run(algorithm, x, w, b, case.attributes, precision=precision)
        finite = np.isfinite(reference)
        np.testing.assert_array_equal(y[~finite], reference[~finite])
        # The other outputs have no term of `special` and keep their accuracy.
        x[index] = 0
        operand, unit = rounding_of(algorithm, precision)
        bound = 1.01 * (2 * operand + (case.terms + 2) * unit) * sum_of_magnitudes(x, w, b, **case.attributes)
        assert np.all(np.abs(y[finite] - reference[finite]) <= bound[finite])


# Limit of the mean relative error in TF32. Rounding operands to the nearest of 11 bits leaves less than 5e-6
# over many outputs. Truncating operands would lose half a unit, 2^-11 of numbers of 1.5 on average: 3e-4.
# Tensor cores truncate sums, which costs some 6e-6 in steps of 4 to 16 terms.
MAX_BIAS = 5e-5


def positive_layer() -> tuple[np.ndarray, np.ndarray]:
    """Return x and w of a layer of 300 positive terms, so that truncation errors add up."""
    random = np.random.default_rng(8)
    shapes = (4, 12, 33, 33), (24, 12, 5, 5)
    return tuple(random.uniform(1, 2, shape).astype(np.float32) for shape in shapes)


def bias_of(y: np.ndarray, x: np.ndarray, w: np.ndarray) -> float:
    """Return the mean relative error of the outputs, with its sign."""
    reference = _native.conv(x.astype(np.float64), w.astype(np.float64), algorithm="reference")
    return np.mean((y - reference) / reference)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", [*TENSOR_CORE_ALGORITHMS, "ladder_14_tensor_cores"])
def test_tf32_rounds_to_the_nearest(algorithm):
    x, w = positive_layer()
    assert abs(bias_of(run(algorithm, x, w, None, {}), x, w)) < MAX_BIAS


def test_a_truncated_operand_of_tf32_is_more_than_the_bias_that_is_allowed():
    """Compute the bias of truncated operands with NumPy."""

    def truncated(values: np.ndarray) -> np.ndarray:
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    def rounded(values: np.ndarray) -> np.ndarray:
        return truncated((values.view(np.uint32) + np.uint32(0x1000)).view(np.float32))

    def bias_with(of_x, of_w) -> float:
        wide = [array.astype(np.float64) for array in (of_x(x), of_w(w))]
        return bias_of(_native.conv(*wide, algorithm="reference"), x, w)

    x, w = positive_layer()
    assert abs(bias_with(rounded, rounded)) < MAX_BIAS / 10
    assert bias_with(truncated, rounded) < -5 * MAX_BIAS
    assert bias_with(rounded, truncated) < -5 * MAX_BIAS


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_very_large_and_very_small_values_keep_their_relative_accuracy(algorithm):
    case = ConvCase((2, 3, 12, 14), (5, 3, 3, 3))
    x, w, _ = case.arrays()
    reference = convolve(x, w)
    for exponent in (-100, -30, 30, 100):
        scaled = run(algorithm, x * np.float32(2.0**exponent), w, None, {})
        error = np.linalg.norm(scaled.astype(np.float64) * 2.0**-exponent - reference) / np.linalg.norm(
            reference
        )
        assert error <= RELATIVE_L2[algorithm], exponent


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repeated_runs_give_the_same_bits(algorithm):
    case = ConvCase((64, 3, 20, 22), (20, 3, 5, 5), True)
    first = run(algorithm, *case.arrays(), case.attributes)
    for _ in range(5):
        assert np.array_equal(run(algorithm, *case.arrays(), case.attributes), first)


@pytest.mark.gpu
@on_tensor_cores
def test_nothing_is_written_beyond_the_output(algorithm):
    # Allocations of one size are adjacent, so a stray store would hit a neighbour.
    for case in supported(algorithm, random_cases(seed=6, count=20, ranks=(1, 2), max_products=2_000_000)):
        shape = problem_of(case).output_shape
        outputs = [_native.DeviceArray(shape) for _ in range(5)]
        for output in outputs:
            output.poison()
        x, w, b = (None if a is None else _native.DeviceArray.from_numpy(a) for a in case.arrays())
        _native.conv_device(x, w, b, outputs[2], algorithm=algorithm, **case.attributes)
        assert np.all(np.isfinite(outputs[2].to_numpy()))
        assert all(np.all(np.isnan(outputs[i].to_numpy())) for i in (0, 1, 3, 4))


@pytest.mark.gpu
def test_precision_ieee_is_float32_throughout():
    case = ConvCase((4, 3, 20, 22), (20, 3, 5, 5), True)
    x, w, b = case.arrays()
    y = run("auto", x, w, b, {}, precision="ieee")
    reference = case.reference
    assert np.linalg.norm(y - reference) / np.linalg.norm(reference) < 1e-6
    assert _native.choose(problem_of(case, precision="ieee"), "cuda") != "naive"


def test_rule_takes_no_algorithm_that_needs_scratch_memory_where_there_is_none():
    problem = _native.Problem((64, 256, 14, 14), (256, 256, 3, 3), pads=[1] * 4)
    assert _native.choose(problem, "cuda", compute_capability=90) == "many_channels"
    other = _native.choose(problem, "cuda", compute_capability=90, lends_scratch=False)
    assert other in ALGORITHMS and other != "many_channels"
    with pytest.raises(ConvswapError, match=r"needs scratch memory, which takes ONNX Runtime 1\.18 or newer"):
        _native.choose(problem, "cuda", "many_channels", compute_capability=90, lends_scratch=False)
    # A pool with overlapping windows is a second kernel, with scratch memory between the two.
    pooled = _native.Problem(
        (1, 3, 16, 16), (4, 3, 3, 3), pool="MaxPool", pool_kernel_shape=[3, 3], pool_pads=[1] * 4
    )
    # Weights that are not constant are prepared in scratch memory.
    nhwc = _native.Problem(
        (1, 16, 16, 64), (64, 64, 3, 3), type="float16", input_layout="NHWC", output_layout="NHWC"
    )
    problems = {"few_channels": pooled, "tiled": pooled, "channels_last": nhwc, "channels_last_mma": nhwc}
    for algorithm, refused in problems.items():
        why_not = _native.why_not(refused, algorithm, "cuda", compute_capability=90, lends_scratch=False)
        assert "needs scratch memory" in why_not
        assert not _native.why_not(refused, algorithm, "cuda", compute_capability=90)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_data_behind_the_channels_of_an_image_do_not_count(algorithm):
    random = np.random.default_rng(0)
    x, w = (random.normal(size=shape).astype(np.float16) for shape in ((2, 200, 8, 8), (16, 200, 1, 1)))
    # 200 channels do not fill the last step of many_channels; the next image follows in memory.
    x[1, :24] = np.inf
    problem = _native.Problem(x.shape, w.shape, False, "float16", "tf32")
    if why_not := _native.why_not(problem, algorithm, "cuda"):
        pytest.skip(f"{algorithm}: {why_not}")
    y = _native.DeviceArray((2, 16, 8, 8), "float16")
    _native.conv_device(
        _native.DeviceArray.from_numpy(x), _native.DeviceArray.from_numpy(w), None, y, algorithm=algorithm
    )
    reference = np.einsum("chw,kc->khw", x[0].astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    sizes = np.einsum(
        "chw,kc->khw", np.abs(x[0]).astype(np.float64), np.abs(w[:, :, 0, 0]).astype(np.float64)
    )
    # One rounding to float16; the tensor core truncates each of 200 terms.
    assert (
        np.abs(y.to_numpy()[0] - reference) <= 2.0**-11 * np.abs(reference) + 200 * 2.0**-22 * sizes
    ).all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", [ConvCase((0, 3, 9, 8), (4, 3, 3, 3)), ConvCase((2, 3, 9, 8), (0, 3, 3, 3))])
def test_empty_output_takes_no_time(case):
    x, w, _ = case.arrays()
    y = _native.DeviceArray(problem_of(case).output_shape)
    assert _native.conv_device(*map(_native.DeviceArray.from_numpy, (x, w)), None, y) == 0


@pytest.mark.gpu
def test_without_channels_every_output_is_its_bias():
    case = ConvCase((2, 0, 9, 8), (4, 0, 3, 3), True)
    x, w, b = case.arrays()
    y = run("auto", x, w, b, {})
    assert np.array_equal(y, np.broadcast_to(b[None, :, None, None], y.shape))


@pytest.mark.gpu
def test_misfit_of_device_arrays_raises():
    x, w, b = map(_native.DeviceArray.from_numpy, ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True).arrays())
    with pytest.raises(ConvswapError, match=r"y of shape \[2, 4, 7, 5\]: expected \[2, 4, 7, 6\]"):
        _native.conv_device(x, w, b, _native.DeviceArray((2, 4, 7, 5)))
    with pytest.raises(ConvswapError, match="w is float64 on device 0: expected float32 on device 0"):
        _native.conv_device(
            x, _native.DeviceArray((4, 3, 3, 3), "float64"), b, _native.DeviceArray((2, 4, 7, 6))
        )
    with pytest.raises(ConvswapError, match="runs 0: expected at least 1"):
        _native.conv_device(x, w, b, _native.DeviceArray((2, 4, 7, 6)), runs=0)


@pytest.mark.gpu
def test_device_arrays_keep_what_they_were_given():
    for array in (np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.zeros((0, 3)), np.full((2, 2), 0.1)):
        copy = _native.DeviceArray.from_numpy(array)
        assert copy.shape == array.shape
        assert copy.to_numpy().dtype == array.dtype
        assert np.array_equal(copy.to_numpy(), array)


def test_card_that_is_not_there_is_named():
    problem = _native.Problem((1, 3, 9, 8), (4, 3, 3, 3))
    beyond = len(_native.cuda_devices())
    with pytest.raises(RuntimeError, match=f"CUDA device {beyond} (does not exist|is not available)"):
        _native.choose(problem, "cuda", index=beyond)


@pytest.mark.parametrize(
    ("case", "options", "capability", "reason"),
    [
        (
            ConvCase((1, 1, 9, 8), (4, 1, 3, 3)),
            {},
            75,
            "it needs compute capability 8.0 or newer, and a card of compute capability 75 has 7.5",
        ),
        (
            ConvCase((1, 1, 9, 8), (4, 1, 3, 3)),
            {"type": "float64"},
            90,
            "it does not compute float64",
        ),
        (
            ConvCase((1, 1, 9, 8, 7), (4, 1, 3, 3, 3)),
            {},
            90,
            "it computes 1-D and 2-D data and these have 3 spatial axes",
        ),
        (ConvCase((1, 0, 9, 8), (4, 0, 3, 3)), {}, 90, "the input has no channels"),
        (
            ConvCase((1, 1, 9, 20), (4, 1, 3, 12)),
            {},
            90,
            "filter rows of 12 taps at stride 1 are wider than its 11",
        ),
        (
            ConvCase((1, 2, 200, 700), (4, 2, 3, 3), False, {"dilations": [64, 300]}),
            {},
            90,
            "its smallest tile, one channel of a filter's reach",
        ),
        (ConvCase((1, 1, 40_000, 40_000), (4, 1, 3, 3)), {}, 90, "its indices have 32 bits"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_few_channels_says_why_it_cannot_and_the_planner_takes_another(case, options, capability, reason):
    problem = problem_of(case, **options)
    assert _native.why_not(problem, "few_channels", "cuda", compute_capability=capability).startswith(reason)
    with pytest.raises(ConvswapError) as raised:
        _native.choose(problem, "cuda", "few_channels", compute_capability=capability)
    assert "algorithm 'few_channels' cannot compute this convolution: " + reason in str(raised.value)
    assert str(raised.value).endswith("; use algorithm 'auto', which selects one that can")
    chosen = _native.choose(problem, "cuda", compute_capability=capability)
    for name in ("naive", chosen):
        assert not _native.why_not(problem, name, "cuda", compute_capability=capability)


@pytest.mark.parametrize("capability", CAPABILITIES)
@each("layer", SUITES["course"])
@each("batch", [100, 10_000, 65_536])
def test_tensor_cores_serve_every_course_layer_on_every_card_of_8_0_or_newer(layer, batch, capability):
    expected = (*TENSOR_CORE_ALGORITHMS, "row_windows") if capability == 90 else ("few_channels",)
    for options in ({}, {"precision": "ieee"}, {"type": "float16"}, {"type": "bfloat16"}):
        problem = _native.Problem(layer.input_shape(batch), layer.weight_shape, **options)
        assert _native.choose(problem, "cuda", compute_capability=capability) in expected


def test_tensor_cores_serve_up_to_16_channels_and_11_taps_with_every_stride_and_padding():
    for c, kernel, stride, pad, size in itertools.product(
        (1, 3, 16), (1, 5, 11), (1, 2, 3, 4, 5, 13), (0, 3, 20), (28, 227)
    ):
        problem = _native.Problem(
            (8, c, size, size), (64, c, kernel, kernel), strides=[stride, stride], pads=[pad, pad, pad, pad]
        )
        chosen = _native.choose(problem, "cuda", compute_capability=90)
        supporting = [
            name
            for name in TENSOR_CORE_ALGORITHMS
            if not _native.why_not(problem, name, "cuda", compute_capability=90)
        ]
        description = f"{c} channels, {kernel} taps, stride {stride}, pad {pad}, size {size}"
        assert supporting, description
        # On small problems a plain kernel ends before the others have prepared their weights. If few_channels
        # takes several passes over the channels, it rereads and rewrites y in each.
        takes_passes = c == 16 and kernel == 11 and stride > 2
        is_on_tensor_cores = chosen in (*supporting, "many_channels", "pointwise", "sliced_k", "row_windows")
        assert is_on_tensor_cores or problem.operations < 100_000_000 or takes_passes, description


@pytest.mark.parametrize("case", [ConvCase((0, 3, 9, 8), (4, 3, 3, 3)), ConvCase((2, 3, 9, 8), (0, 3, 3, 3))])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_planning_an_empty_output_does_no_harm(case, algorithm):
    problem = problem_of(case)
    assert isinstance(_native.why_not(problem, algorithm, "cuda", compute_capability=90), str)
    assert _native.choose(problem, "cuda", compute_capability=90) in ALGORITHMS


@pytest.mark.parametrize(
    ("x_shape", "layouts"),
    [((1, 8, 3, 3), {}), ((1, 3, 3, 8), {"input_layout": "NHWC", "output_layout": "NHWC"})],
)
@pytest.mark.parametrize("element_type", ["float32", "float16"])
def test_a_pool_whose_window_exceeds_the_image_is_left_to_naive(x_shape, layouts, element_type):
    pool = {"pool": "MaxPool", "pool_kernel_shape": [4, 4]}
    problem = _native.Problem(x_shape, (8, 8, 1, 1), type=element_type, **pool, **layouts)
    assert 0 in problem.output_shape
    for algorithm in ALGORITHMS:
        why_not = _native.why_not(problem, algorithm, "cuda", compute_capability=90)
        assert why_not == ("" if algorithm == "naive" else "the output is empty"), algorithm
    assert _native.choose(problem, "cuda", compute_capability=90) == "naive"
    assert _native.kernels_of(problem, "cuda", compute_capability=90)[0].startswith("naive::kernel")
    assert "naive" in str(_native.explain(problem, "cuda", compute_capability=90))
    assert _native.estimates(problem, "cuda", compute_capability=90) == {"naive": None}


def test_a_pool_with_more_results_than_32_bits_count_is_left_to_naive():
    """The padding of the windows makes more results than the convolution has outputs."""
    taps = 2**15 + 1
    pool = {"pool": "MaxPool", "pool_kernel_shape": [taps] * 2, "pool_pads": [taps - 1] * 4}
    problem = _native.Problem((1, 8, 1, 1), (8, 8, 1, 1), type="float16", **pool)
    assert problem.output_shape == (1, 8, taps, taps)
    why_not = _native.why_not(problem, "implicit_gemm", "cuda", compute_capability=90)
    assert why_not.startswith("its pooling kernel has 32-bit indices")
    assert _native.choose(problem, "cuda", compute_capability=90) == "naive"


def test_unknown_algorithm_or_device_is_named_with_the_nearest():
    problem = _native.Problem((1, 3, 9, 8), (4, 3, 3, 3))
    with pytest.raises(ConvswapError, match="'nave'; did you mean 'naive'"):
        _native.choose(problem, "cuda", "nave", compute_capability=90)
    with pytest.raises(ConvswapError, match="'few_chanels'; did you mean 'few_channels'"):
        _native.why_not(problem, "few_chanels", "cuda", compute_capability=90)
    with pytest.raises(ConvswapError, match="unknown device 'cudda'; did you mean 'cuda'"):
        _native.choose(problem, "cudda")
