"""The tensor core kernels, emulated thread by thread on the CPU.

emulation/cuda_emulation.h says which faults an emulation finds.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from emulate import build

# Seeds of random problems. After a change of a kernel, run a thousand, which takes minutes:
# python tools/emulate.py toeplitz --seeds 40:1040
SEEDS = 16
# Regressions: with padding below only, tiles took rows of the previous tile.
REGRESSION_SEEDS = {"toeplitz": (215, 285)}
# First seeds of kinds of problems, as in problems.cc. In these, blocks have several images. implicit_gemm,
# whose warps are producers and consumers of images, gets more of them.
FIRST_MULTI_IMAGE_SEED = 1_000_000
# Words of rare plans, with the first seed of the search: tiles that overlap so that whole lines are stored,
# also with input by TMA; two folds that are stored in pairs; double-buffered filters with tiles of 120
# columns, several of an image; tiles of 128 columns.
RARE = {
    "tiles that overlap": ("toeplitz", 0, r"shared with the next tile\)"),
    "tiles of TMA input that overlap": (
        "toeplitz",
        15_000,
        r"shared with the next tile\).*input by TMA",
    ),
    "tiles in precision ieee that overlap": ("toeplitz", 20_000, r"ieee .*shared with the next tile\)"),
    "pairs of folds": ("toeplitz", 0, r" x 2 outputs, "),
    "double-buffered filters": (
        "implicit_gemm",
        FIRST_MULTI_IMAGE_SEED,
        r"of 64 x \d+ x (120|240|360|480|600),.* 1 buffer for results and one for ",
    ),
    "wide tiles": ("implicit_gemm", 0, r"of 64 x \d+ x (128|256|384|512),"),
}
# Limit of plans in the search, which takes seconds.
MAX_PLANS, PLANS_AT_ONCE = 20_000, 1_000
# Time limit for kernels that hang; 30 seeds take some 15 seconds.
TIMEOUT_SECONDS = 600
# Least share of seeds that the algorithm computes; it refuses the others. many_channels refuses problems for
# cards with less shared memory than any that it supports.
MIN_COMPUTED = {algorithm: 0.8 for algorithm in ("few_channels", "toeplitz", "implicit_gemm", "tiled")}
MIN_COMPUTED["many_channels"] = MIN_COMPUTED["sliced_k"] = MIN_COMPUTED["row_windows"] = 0.45
MULTI_IMAGE_SEEDS = {
    "few_channels": 10,
    "toeplitz": 10,
    "implicit_gemm": 15,
    "many_channels": 10,
    "sliced_k": 10,
    "row_windows": 10,
    "tiled": 10,
}
MIN_MULTI_IMAGE_COMPUTED = {
    "few_channels": 8,
    "toeplitz": 7,
    "implicit_gemm": 10,
    "many_channels": 5,
    "sliced_k": 5,
    "row_windows": 4,
    "tiled": 8,
}
# More channels, and values with a wide range whose products all contribute to the sum.
FIRST_MANY_CHANNELS_SEED = 2_000_000
MANY_CHANNELS_SEEDS = {"many_channels": 15, "tiled": 10}
# Images so wide that a tile is a part of some rows. 3,000,010 and 3,000,011 are regressions: rows of several
# phases overlapped.
FIRST_WIDE_SEED, WIDE_SEEDS = 3_000_000, 12
# 1x1 filters without padding.
FIRST_POINTWISE_SEED, POINTWISE_SEEDS = 4_000_000, 30
# Depthwise convolutions.
FIRST_DEPTHWISE_SEED, DEPTHWISE_SEEDS = 6_000_000, 30
# Depthwise convolutions for `sliding_rows`.
FIRST_SLIDING_SEED, SLIDING_SEEDS = 7_000_000, 30
# A depthwise convolution before a 1x1 convolution.
FIRST_SEPARABLE_SEED, SEPARABLE_SEEDS = 8_000_000, 30
# Channels-last tensors.
FIRST_CHANNELS_LAST_SEED, CHANNELS_LAST_SEEDS = 9_000_000, 40
SPLIT_PROBLEMS = 4
# Depthwise convolutions of channels-last tensors, some with a pool.
FIRST_CHANNELS_LAST_DEPTHWISE_SEED, CHANNELS_LAST_DEPTHWISE_SEEDS = 10_000_000, 60
# NCHW inputs and NHWC outputs.
FIRST_NHWC_OUTPUT_SEED, NHWC_OUTPUT_SEEDS = 11_000_000, 30
# Codes.
FIRST_QUANTISED_SEED, QUANTISED_SEEDS = 13_000_000, 60
# Codes that channels_last computes by way of another convolution.
FIRST_DERIVED_SEED, DERIVED_SEEDS = 14_000_000, 60
# Channels-last tensors, half of them of few channels, also in several groups.
FIRST_CHANNELS_LAST_MMA_SEED, CHANNELS_LAST_MMA_SEEDS = 12_000_000, 40
# A pool of planes that are larger than a block's part.
FIRST_POOLED_SEED, POOLED_SEEDS = 5_000_000, 24
# Problems that are computed by all tilings of a family: first seeds, and numbers of further seeds (default
# 1). pointwise has enough for chunks to reuse slots; many_channels has one by mma.sync and one by wgmma.
EVERY_TILING_FURTHER = {"pointwise": 15}
EVERY_TILING_FIRST = {
    "sliced_k": 40,
    "row_windows": 6,
    "pointwise": FIRST_POINTWISE_SEED,
    "sliding_rows": FIRST_SLIDING_SEED,
    "separable": FIRST_SEPARABLE_SEED,
    "many_channels": FIRST_MANY_CHANNELS_SEED + 3,
    "channels_last": FIRST_CHANNELS_LAST_SEED + 6,
    "channels_last_depthwise": FIRST_CHANNELS_LAST_DEPTHWISE_SEED + 501,
    "channels_last_mma": FIRST_CHANNELS_LAST_MMA_SEED,
}
# Matrices, 30 of each element size.
LAYOUT_SEEDS = 90
# Pools, 20 of each element type.
POOL_SEEDS = 120
LAYER_NORM_SEEDS = 200
MUL_SEEDS = 120
ALGORITHMS = (
    "few_channels",
    "toeplitz",
    "implicit_gemm",
    "many_channels",
    "sliced_k",
    "row_windows",
    "tiled",
)
# One data format of the families that compile in seconds, for `make check` and `make test`; `make test-all`
# runs every family in all its formats.
FEW_SEEDS = 10
ONE_FORMAT = {
    "implicit_gemm": "Bfloat16Pairs",
    "pointwise": "float",
    "tiled": "float",
    "row_windows": "float",
    "naive": "BFloat16",
    "channels_last": "Float16",
    "channels_last_depthwise": "Float16",
    "channels_last_mma": "Float16",
}
FIRST_SEED = {
    "pointwise": FIRST_POINTWISE_SEED,
    "channels_last": FIRST_CHANNELS_LAST_SEED,
    "channels_last_depthwise": FIRST_CHANNELS_LAST_DEPTHWISE_SEED,
    "channels_last_mma": FIRST_CHANNELS_LAST_MMA_SEED,
}


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    """Compile the programs of all algorithms in parallel, which takes longer than running them."""
    return dict(zip(ALGORITHMS, build(*ALGORITHMS), strict=True))


@pytest.mark.parametrize("family", ONE_FORMAT)
def test_family_is_the_definition_in_one_format(family: str) -> None:
    (program,) = build(f"{family}_{ONE_FORMAT[family]}")
    first = FIRST_SEED.get(family, 0)
    assert count_computed(program, first, first + FEW_SEEDS) >= FEW_SEEDS // 2


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm_is_the_definition_for_random_problems(programs: dict[str, Path], algorithm: str) -> None:
    program = programs[algorithm]
    assert count_computed(program, 0, SEEDS) >= MIN_COMPUTED[algorithm] * SEEDS
    for seed in REGRESSION_SEEDS.get(algorithm, ()):
        assert count_computed(program, seed, seed + 1) == 1


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("rare", RARE)
def test_algorithm_is_the_definition_for_problems_with_a_rare_plan(
    programs: dict[str, Path], rare: str
) -> None:
    algorithm, first, words = RARE[rare]
    program = programs[algorithm]
    seed = seed_of_plan(program, first, words)
    assert re.search(words.removeprefix("ieee .*"), output_of(program, seed, seed + 1))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm_is_the_definition_where_blocks_have_several_images(
    programs: dict[str, Path], algorithm: str
) -> None:
    computed = count_computed(
        programs[algorithm], FIRST_MULTI_IMAGE_SEED, FIRST_MULTI_IMAGE_SEED + MULTI_IMAGE_SEEDS[algorithm]
    )
    assert computed >= MIN_MULTI_IMAGE_COMPUTED[algorithm]


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", MANY_CHANNELS_SEEDS)
def test_algorithm_is_the_definition_of_many_channels(programs: dict[str, Path], algorithm: str) -> None:
    seeds = MANY_CHANNELS_SEEDS[algorithm]
    assert (
        count_computed(programs[algorithm], FIRST_MANY_CHANNELS_SEED, FIRST_MANY_CHANNELS_SEED + seeds)
        >= 0.7 * seeds
    )


@pytest.mark.extended
@pytest.mark.slow
def test_many_channels_is_the_definition_of_wide_images(programs: dict[str, Path]) -> None:
    computed = count_computed(programs["many_channels"], FIRST_WIDE_SEED, FIRST_WIDE_SEED + WIDE_SEEDS)
    assert computed >= WIDE_SEEDS // 2


@pytest.mark.extended
@pytest.mark.slow
def test_pointwise_is_the_definition_of_one_tap() -> None:
    (program,) = build("pointwise")
    assert (
        count_computed(program, FIRST_POINTWISE_SEED, FIRST_POINTWISE_SEED + POINTWISE_SEEDS)
        >= 0.7 * POINTWISE_SEEDS
    )


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("family", "first"), EVERY_TILING_FIRST.items())
def test_every_tiling_is_the_definition(family: str, first: int) -> None:
    (program,) = build(family)
    # A line for each tiling of the first problem, and a summary.
    lines = output_of(program, first, first + 1, "every-tiling").splitlines()
    assert len(set(lines)) == len(lines) >= 5
    count = EVERY_TILING_FURTHER.get(family, 1)
    if count > 0:
        assert count_computed(program, first + 1, first + 1 + count, "every-tiling") >= count // 2


@pytest.mark.extended
@pytest.mark.slow
def test_depthwise_is_the_definition_of_one_channel_each() -> None:
    (program,) = build("depthwise")
    assert (
        count_computed(program, FIRST_DEPTHWISE_SEED, FIRST_DEPTHWISE_SEED + DEPTHWISE_SEEDS)
        == DEPTHWISE_SEEDS
    )


@pytest.mark.extended
@pytest.mark.slow
def test_sliding_rows_is_the_definition_of_one_channel_each() -> None:
    (program,) = build("sliding_rows")
    assert count_computed(program, FIRST_SLIDING_SEED, FIRST_SLIDING_SEED + SLIDING_SEEDS) == SLIDING_SEEDS


@pytest.mark.extended
@pytest.mark.slow
def test_separable_is_the_definition_of_a_depthwise_convolution_and_one_tap_behind() -> None:
    (program,) = build("separable")
    computed = count_computed(program, FIRST_SEPARABLE_SEED, FIRST_SEPARABLE_SEED + SEPARABLE_SEEDS)
    assert computed >= 0.85 * SEPARABLE_SEEDS  # separable does not support the others, of precision ieee


@pytest.mark.extended
@pytest.mark.slow
def test_channels_last_is_the_definition() -> None:
    (program,) = build("channels_last")
    # `make test` runs the first few.
    first, count = FIRST_CHANNELS_LAST_SEED + FEW_SEEDS, CHANNELS_LAST_SEEDS
    assert count_computed(program, first, first + count) == count


# Plans of channels_last that split K: tiles of many rows and columns, so that all blocks have results, and
# tiles of several images.
SPLIT_TILES = (r"64 filters x 1 x ([4-9]|\d\d) x ([7-9]|\d\d) outputs", r"64 filters x [2-9] x")


@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("tile", SPLIT_TILES)
def test_blocks_of_a_cluster_that_split_k_compute_the_definition_of_codes(blocks: int, tile: str) -> None:
    (program,) = build("channels_last_UInt8")
    assert count_computed_where_k_is_split(program, FIRST_QUANTISED_SEED, blocks, tile, 1) == 1


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("blocks", [2, 4, 8])
@pytest.mark.parametrize("tile", SPLIT_TILES)
def test_blocks_of_a_cluster_that_split_k_compute_the_definition(blocks: int, tile: str) -> None:
    (program,) = build("channels_last")
    computed = count_computed_where_k_is_split(
        program, FIRST_CHANNELS_LAST_SEED, blocks, tile, SPLIT_PROBLEMS
    )
    assert computed == SPLIT_PROBLEMS


@pytest.mark.parametrize(
    ("program", "first"),
    [("channels_last_Float16", FIRST_CHANNELS_LAST_SEED), ("channels_last_UInt8", FIRST_QUANTISED_SEED)],
)
def test_two_blocks_on_a_multiprocessor_compute_the_definition(program: str, first: int) -> None:
    (built,) = build(program)
    seed = seed_of_plan(built, first, "m64n112.*, 2 on a multiprocessor, ")
    assert count_computed(built, seed, seed + 1) == 1
    # Of the 228 KB of a multiprocessor each block takes 1 KB besides its own.
    found = re.search(r"(\d+) bytes of shared memory", output_of(built, seed, seed + 1, "plans"))
    assert found is not None and 2 * (int(found[1]) + 1024) <= 228 * 1024


def count_computed_where_k_is_split(program: Path, first: int, blocks: int, tile: str, count: int) -> int:
    computed = 0
    for _ in range(count):
        seed = seed_of_plan(program, first, f"{tile}.*, in clusters of {blocks}, ")
        computed += count_computed(program, seed, seed + 1)
        first = seed + 1
    return computed


@pytest.mark.parametrize("program", ["channels_last_UInt8", "quantised_Int8"])
def test_kernels_for_codes_are_the_definition(program: str) -> None:
    (built,) = build(program)
    first, count = FIRST_QUANTISED_SEED, FEW_SEEDS
    # channels_last refuses depthwise problems, and channels that are no multiple of 16.
    assert count_computed(built, first, first + count) >= count / 5


def test_channels_last_is_the_definition_by_way_of_another_convolution() -> None:
    (program,) = build("channels_last_UInt8")
    first, count = FIRST_DERIVED_SEED, FEW_SEEDS
    # It refuses filters that are no multiple of 16 where no pixels of y can be one.
    assert count_computed(program, first, first + count) >= 0.7 * count


@pytest.mark.extended
@pytest.mark.slow
def test_channels_last_is_the_definition_by_way_of_more_convolutions() -> None:
    (program,) = build("channels_last_Int8")
    first, count = FIRST_DERIVED_SEED, DERIVED_SEEDS
    assert count_computed(program, first, first + count) >= 0.7 * count


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["channels_last_Int8", "channels_last_mma_UInt8", "channels_last_mma_Int8", "quantised_UInt8"]
)
def test_kernels_for_codes_are_the_definition_on_more_problems(program: str) -> None:
    (built,) = build(program)
    # A problem of channels_last_mma takes three times as long.
    count = QUANTISED_SEEDS // (3 if "mma" in program else 1)
    first = FIRST_QUANTISED_SEED
    assert count_computed(built, first, first + count) >= count / 5


@pytest.mark.extended
@pytest.mark.slow
def test_channels_last_depthwise_is_the_definition() -> None:
    (program,) = build("channels_last_depthwise")
    first, count = FIRST_CHANNELS_LAST_DEPTHWISE_SEED, CHANNELS_LAST_DEPTHWISE_SEEDS
    # It refuses pools that would round twice.
    assert count_computed(program, first, first + count) >= 0.9 * count


@pytest.mark.extended
@pytest.mark.slow
def test_channels_last_mma_is_the_definition() -> None:
    (program,) = build("channels_last_mma")
    first, count = FIRST_CHANNELS_LAST_MMA_SEED, CHANNELS_LAST_MMA_SEEDS
    assert count_computed(program, first, first + count) == count


@pytest.mark.extended
@pytest.mark.slow
def test_few_channels_is_the_definition_with_an_output_in_nhwc(programs: dict[str, Path]) -> None:
    program, first = programs["few_channels"], FIRST_NHWC_OUTPUT_SEED
    assert count_computed(program, first, first + NHWC_OUTPUT_SEEDS) >= 0.7 * NHWC_OUTPUT_SEEDS


def test_pools_of_large_planes_are_the_definition_part_by_part() -> None:
    (program,) = build("tiled_float")
    assert count_computed(program, FIRST_POOLED_SEED, FIRST_POOLED_SEED + POOLED_SEEDS) == POOLED_SEEDS
    # A separate kernel pools planes of more than 2,048 elements, in two parts or more.
    assert "in a separate kernel" in output_of(program, FIRST_POOLED_SEED, FIRST_POOLED_SEED + 1)


def test_layout_stage_transposes_matrices_of_every_size_and_alignment() -> None:
    (program,) = build("layout")
    assert count_computed(program, 0, LAYOUT_SEEDS) == LAYOUT_SEEDS


def test_layout_pool_is_the_definition_for_every_type_and_alignment() -> None:
    (program,) = build("pool")
    assert count_computed(program, 0, POOL_SEEDS) == POOL_SEEDS


def test_layer_normalisation_is_the_definition_for_every_type_and_length() -> None:
    (program,) = build("layer_norm")
    assert count_computed(program, 0, LAYER_NORM_SEEDS) == LAYER_NORM_SEEDS


def test_mul_is_the_definition_for_every_type_and_alignment() -> None:
    (program,) = build("mul")
    assert count_computed(program, 0, MUL_SEEDS) == MUL_SEEDS


def test_images_further_apart_than_32_bits_are_no_halves_of_a_tile() -> None:
    """The distance between the halves of a tile has 32 bits; here it would be 64 x 8192 x 8192 outputs."""
    (program,) = build("halves")

    def halves(height: int, width: int) -> str:
        done = subprocess.run(
            [program, str(height), str(width)], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip()

    assert halves(8192, 32) == "images"
    assert halves(8192, 8192) == "rows"


def seed_of_plan(program: Path, first: int, words: str) -> int:
    """Return the first seed from `first` on whose plan matches the regular expression `words`."""
    for begin in range(first, first + MAX_PLANS, PLANS_AT_ONCE):
        plans = output_of(program, begin, begin + PLANS_AT_ONCE, "plans")
        if found := re.search(rf"^(\d+): .*{words}", plans, re.MULTILINE):
            return int(found[1])
    raise AssertionError(f"no plan has {words!r}")


def count_computed(program: Path, first: int, end: int, *options: str) -> int:
    """Return how many problems of the seeds the algorithm computes; all results must be right."""
    computed, _, summary = output_of(program, first, end, *options).splitlines()[-1].partition(" ")
    assert summary == "problems computed, 0 wrong"
    return int(computed)


def output_of(program: Path, first: int, end: int, *options: str) -> str:
    """Return the program's output for the seeds; all results must be right."""
    command = [program, str(first), str(end), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def faults() -> Path:
    return build("faults")[0]


def test_kernel_without_a_fault_runs_as_on_a_card(faults: Path) -> None:
    done = subprocess.run(
        [faults, "none"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    assert [int(word) for word in done.stdout.split()] == [*range(101, 164), 100]


def test_missing_barrier_gives_what_shared_memory_held_before(faults: Path) -> None:
    done = subprocess.run(
        [faults, "missing barrier"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    # Each thread runs to its end before the next begins, so all but the last read unwritten memory.
    *unwritten, last = (int(word) for word in done.stdout.split())
    assert last == 100 and len(unwritten) == 63 and len(set(unwritten)) == 1
    for element_type, count in (("float32", 1), ("float16", 2)):
        assert np.isnan(np.array(unwritten[:1], np.uint32).view(element_type)).sum() == count


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("beyond shared memory", "a write beyond shared memory"),
        ("divergent barrier", "threads wait for each other for ever"),
        ("misaligned copy", "a misaligned cp.async"),
        ("misaligned store", "a misaligned store to shared memory"),
        ("misaligned TMA store", "a misaligned TMA store"),
        ("changing source", "a TMA store whose source changes"),
        ("missing wait", "a TMA store that no thread waited for"),
        ("misaligned TMA load", "a misaligned TMA load"),
        ("missing wait for loads", "a TMA load that no thread waited for"),
        ("missing wait for a cluster", "an mbarrier that is not initialised"),
    ],
)
def test_fault_is_named_with_its_block(faults: Path, fault: str, words: str) -> None:
    done = subprocess.run(
        [faults, fault], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 1
    assert done.stdout == f"{words} in block (0, 0)\n"
