"""The kernels of the tensor cores, thread by thread on the CPU: their logic, on machines without a card.

What such a run finds, and what it cannot, is said in emulation/cuda_emulation.h.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from emulate import build

# Problems; random, but the same every time. A thousand more take minutes, which is for changes of a kernel:
# python tools/emulate.py toeplitz --seeds 40:1040
SEEDS = 16
# Of problems that came out wrong once: with padding below alone, tiles took rows of the tile before.
ONCE_WRONG = {"toeplitz": (215, 285)}
# From CROWDED on, as in problems.cc, blocks have several images. More of them for the algorithm whose warps
# are producers and consumers of images.
CROWDED = 1_000_000
# What few plans say of themselves, with a seed from which on one is looked for: tiles that overlap so that
# lines are stored whole, also of input that copies bring; two folds that are stored in pairs; filters that
# come late, whose products have 120 columns, several of an image; products of 128 columns.
RARE = {
    "tiles that overlap": ("toeplitz", 0, r"of them the next tile's too\)"),
    "tiles of copies that overlap": (
        "toeplitz",
        15_000,
        r"of them the next tile's too\).*input by TMA",
    ),
    "tiles in precision ieee that overlap": ("toeplitz", 20_000, r"ieee .*of them the next tile's too\)"),
    "pairs of folds": ("toeplitz", 0, r" x 2 outputs, "),
    "late filters": (
        "implicit_gemm",
        CROWDED,
        r"of 64 x \d+ x (120|240|360|480|600),.* 1 buffer for results and one for ",
    ),
    "wide products": ("implicit_gemm", 0, r"of 64 x \d+ x (128|256|384|512),"),
}
# Plans that are looked through for such a one: some seconds.
MOST_PLANS, PLANS_AT_ONCE = 20_000, 1_000
# A kernel that never ends must not keep the tests from ending; 30 seeds take some 15 seconds.
MOST_SECONDS = 600
# The share of the seeds that must at least be computed; the algorithm refuses the others, many_channels
# those of cards with less shared memory than any that it has code for.
LEAST_COMPUTED = {algorithm: 0.8 for algorithm in ("few_channels", "toeplitz", "implicit_gemm", "tiled")}
LEAST_COMPUTED["many_channels"] = LEAST_COMPUTED["sliced_k"] = LEAST_COMPUTED["row_windows"] = 0.45
CROWDED_SEEDS = {
    "few_channels": 10,
    "toeplitz": 10,
    "implicit_gemm": 15,
    "many_channels": 10,
    "sliced_k": 10,
    "row_windows": 10,
    "tiled": 10,
}
LEAST_CROWDED_COMPUTED = {
    "few_channels": 8,
    "toeplitz": 7,
    "implicit_gemm": 10,
    "many_channels": 5,
    "sliced_k": 5,
    "row_windows": 4,
    "tiled": 8,
}
# From MANY_CHANNELS on, as in problems.cc, there are more channels, and values far apart in which all
# products count all the same.
MANY_CHANNELS = 2_000_000
MANY_CHANNELS_SEEDS = {"many_channels": 15, "tiled": 10}
# From WIDE_IMAGES on, as in problems.cc, images are so wide that a tile is a part of some rows. Rows of
# several phases lay upon each other in 3,000,010 and 11 once.
WIDE_IMAGES, WIDE_SEEDS = 3_000_000, 12
# From POINTWISE on, as in problems.cc, filters have one tap and nothing is padded.
POINTWISE, POINTWISE_SEEDS = 4_000_000, 30
# From DEPTHWISE on, as in problems.cc, each filter sees one channel.
DEPTHWISE, DEPTHWISE_SEEDS = 6_000_000, 30
# From SLIDING on, as in problems.cc, they are those of `sliding_rows`.
SLIDING, SLIDING_SEEDS = 7_000_000, 30
# From SEPARABLE on, as in problems.cc, a depthwise convolution comes before one of one tap.
SEPARABLE, SEPARABLE_SEEDS = 8_000_000, 30
# From POOLED on, as in problems.cc, a pool follows, of planes that are more than a block pools at a time.
POOLED, POOLED_SEEDS = 5_000_000, 24
# Of problems that are computed by all tilings that a family chooses among: of each family two,
# of pointwise so many that chunks go round in slots, and of many_channels, which has 64 tilings, one.
EVERY_TILING_MORE = {"pointwise": 15, "many_channels": 0}
EVERY_TILING = {
    "sliced_k": 40,
    "row_windows": 6,
    "pointwise": POINTWISE,
    "sliding_rows": SLIDING,
    "separable": SEPARABLE,
    "many_channels": MANY_CHANNELS + 3,
}
ALGORITHMS = (
    "few_channels",
    "toeplitz",
    "implicit_gemm",
    "many_channels",
    "sliced_k",
    "row_windows",
    "tiled",
)
# A format of the data for the families that compile in seconds, and so many problems of it, for `make check`
# and `make test`; `make test-all` runs every family in all its formats.
FEW_SEEDS = 20
ONE_FORMAT = {
    "implicit_gemm": "Bfloat16Pairs",
    "pointwise": "float",
    "tiled": "float",
    "row_windows": "float",
    "naive": "BFloat16",
}
FIRST_SEED = {"pointwise": POINTWISE}


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    """Compile the programs of all algorithms, side by side: that takes longer than to run them."""
    return dict(zip(ALGORITHMS, build(*ALGORITHMS), strict=True))


@pytest.mark.parametrize("family", ONE_FORMAT)
def test_family_is_the_definition_in_one_format(family: str) -> None:
    (program,) = build(f"{family}_{ONE_FORMAT[family]}")
    first = FIRST_SEED.get(family, 0)
    assert computed_of(program, first, first + FEW_SEEDS) >= FEW_SEEDS // 2


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm_is_the_definition_for_random_problems(programs: dict[str, Path], algorithm: str) -> None:
    program = programs[algorithm]
    assert computed_of(program, 0, SEEDS) >= LEAST_COMPUTED[algorithm] * SEEDS
    for seed in ONCE_WRONG.get(algorithm, ()):
        assert computed_of(program, seed, seed + 1) == 1


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("rare", RARE)
def test_algorithm_is_the_definition_for_problems_with_a_rare_plan(
    programs: dict[str, Path], rare: str
) -> None:
    algorithm, first, words = RARE[rare]
    program = programs[algorithm]
    seed = seed_of_plan(program, first, words)
    assert re.search(words.removeprefix("ieee .*"), told_of(program, seed, seed + 1))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm_is_the_definition_where_blocks_have_several_images(
    programs: dict[str, Path], algorithm: str
) -> None:
    computed = computed_of(programs[algorithm], CROWDED, CROWDED + CROWDED_SEEDS[algorithm])
    assert computed >= LEAST_CROWDED_COMPUTED[algorithm]


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", MANY_CHANNELS_SEEDS)
def test_algorithm_is_the_definition_of_many_channels(programs: dict[str, Path], algorithm: str) -> None:
    seeds = MANY_CHANNELS_SEEDS[algorithm]
    assert computed_of(programs[algorithm], MANY_CHANNELS, MANY_CHANNELS + seeds) >= 0.7 * seeds


@pytest.mark.extended
@pytest.mark.slow
def test_many_channels_is_the_definition_of_wide_images(programs: dict[str, Path]) -> None:
    computed = computed_of(programs["many_channels"], WIDE_IMAGES, WIDE_IMAGES + WIDE_SEEDS)
    assert computed >= WIDE_SEEDS // 2


@pytest.mark.extended
@pytest.mark.slow
def test_pointwise_is_the_definition_of_one_tap() -> None:
    (program,) = build("pointwise")
    assert computed_of(program, POINTWISE, POINTWISE + POINTWISE_SEEDS) >= 0.7 * POINTWISE_SEEDS


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("family", "first"), EVERY_TILING.items())
def test_every_tiling_is_the_definition(family: str, first: int) -> None:
    (program,) = build(family)
    # The tilings of the first, one a line, and what came of them all.
    told = told_of(program, first, first + 1, "every-tiling").splitlines()
    assert len(set(told)) == len(told) >= 5
    more = EVERY_TILING_MORE.get(family, 1)
    if more > 0:
        assert computed_of(program, first + 1, first + 1 + more, "every-tiling") >= more // 2


@pytest.mark.extended
@pytest.mark.slow
def test_depthwise_is_the_definition_of_one_channel_each() -> None:
    (program,) = build("depthwise")
    assert computed_of(program, DEPTHWISE, DEPTHWISE + DEPTHWISE_SEEDS) == DEPTHWISE_SEEDS


@pytest.mark.extended
@pytest.mark.slow
def test_sliding_rows_is_the_definition_of_one_channel_each() -> None:
    (program,) = build("sliding_rows")
    assert computed_of(program, SLIDING, SLIDING + SLIDING_SEEDS) == SLIDING_SEEDS


@pytest.mark.extended
@pytest.mark.slow
def test_separable_is_the_definition_of_a_depthwise_convolution_and_one_tap_behind() -> None:
    (program,) = build("separable")
    computed = computed_of(program, SEPARABLE, SEPARABLE + SEPARABLE_SEEDS)
    assert computed >= 0.85 * SEPARABLE_SEEDS  # the others are of precision ieee


def test_pools_of_large_planes_are_the_definition_part_by_part() -> None:
    (program,) = build("tiled_float")
    assert computed_of(program, POOLED, POOLED + POOLED_SEEDS) == POOLED_SEEDS
    # Planes of more than 2,048 elements, two parts at the least, which a kernel of its own pools.
    assert "in a separate kernel" in told_of(program, POOLED, POOLED + 1)


def test_images_that_32_bits_do_not_reach_across_are_no_halves_of_a_tile() -> None:
    """`few_channels`, whose halves lie 32 bits of elements apart at most: 2 x 64 x 8192 x 8192 outputs."""
    (program,) = build("halves")

    def halves(height: int, width: int) -> str:
        done = subprocess.run(
            [program, str(height), str(width)], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip()

    assert halves(8192, 64) == "images"
    assert halves(8192, 8192) == "rows"


def seed_of_plan(program: Path, first: int, words: str) -> int:
    """Return the seed, from `first` on, of a problem whose plan has `words`, a regular expression."""
    for begin in range(first, first + MOST_PLANS, PLANS_AT_ONCE):
        plans = told_of(program, begin, begin + PLANS_AT_ONCE, "plans")
        if found := re.search(rf"^(\d+): .*{words}", plans, re.MULTILINE):
            return int(found[1])
    raise AssertionError(f"no plan has {words!r}")


def computed_of(program: Path, first: int, end: int, *how: str) -> int:
    """Return how many of the problems of so many seeds the algorithm takes; all must come out right."""
    computed, _, rest = told_of(program, first, end, *how).splitlines()[-1].partition(" ")
    assert rest == "problems computed, 0 wrong"
    return int(computed)


def told_of(program: Path, first: int, end: int, *how: str) -> str:
    """Return what the program prints of so many seeds, whose problems must come out right."""
    command = [program, str(first), str(end), *how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def faults() -> Path:
    return build("faults")[0]


def test_kernel_without_a_fault_runs_as_on_a_card(faults: Path) -> None:
    done = subprocess.run([faults, "none"], capture_output=True, text=True, timeout=MOST_SECONDS, check=True)
    assert [int(word) for word in done.stdout.split()] == [*range(101, 164), 100]


def test_missing_barrier_gives_what_shared_memory_held_before(faults: Path) -> None:
    done = subprocess.run(
        [faults, "missing barrier"], capture_output=True, text=True, timeout=MOST_SECONDS, check=True
    )
    # A thread runs to its end before the next begins, so all but the last read what was never written.
    *unwritten, last = (int(word) for word in done.stdout.split())
    assert last == 100 and len(unwritten) == 63 and len(set(unwritten)) == 1
    for element_type, count in (("float32", 1), ("float16", 2)):
        assert np.isnan(np.array(unwritten[:1], np.uint32).view(element_type)).sum() == count


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("beyond shared memory", "a write beyond shared memory"),
        ("barrier of a part", "threads wait for each other for ever"),
        ("misaligned copy", "a misaligned cp.async"),
        ("misaligned store", "a misaligned store to shared memory"),
        ("misaligned bulk store", "a misaligned TMA store"),
        ("changing source", "a TMA store whose source changes"),
        ("missing wait", "a TMA store that no thread waited for"),
        ("misaligned bulk load", "a misaligned TMA load"),
        ("missing wait for loads", "a TMA load that no thread waited for"),
    ],
)
def test_fault_is_named_with_its_block(faults: Path, fault: str, words: str) -> None:
    done = subprocess.run([faults, fault], capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 1
    assert done.stdout == f"{words} in block (0, 0)\n"
