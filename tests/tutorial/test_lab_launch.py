"""Launch lines: integer expressions of a convolution's sizes, read by a small grammar."""

from __future__ import annotations

import pytest
from convswap import _native
from convswap.errors import ConvswapError
from hypothesis import given, settings
from hypothesis import strategies as st

KERNEL = "__global__ void forward() {}\n"
COURSE = _native.Problem((2, 3, 40, 28), (50, 3, 5, 5))
CONV = _native.Problem((2, 6, 9, 8), (4, 3, 3, 2), True, strides=[2, 1], group=2)
SHARED_LIMIT = 100_000


def shared_bytes(expression: str, problem: _native.Problem = COURSE, more_lines: str = "") -> int:
    text = f"// launch: grid(1) block(1) shared({expression})\n{more_lines}{KERNEL}"
    return _native.LabSource("mine.cu", text).launch(problem, SHARED_LIMIT)[2]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("B + M * C", 2 + 50 * 3),
        ("(B + M) * C", 52 * 3),
        ("H_out", 36),
        ("W_out", 24),
        ("K * K - 1", 24),
        ("ceil_div(H_out, 16) * ceil_div(W_out, 16)", 6),
        ("ceil_div(32, 16)", 2),
        ("max(min(H, W), 30)", 30),
        ("100 % 7 * 2", 4),
        ("- - 5", 5),
        ("10 - 3 - 2", 5),
        ("64 / 4 / 2", 8),
        ("(B < 3) + (B >= 2) * 10 + (M != 50) * 100", 11),
        ("B == 2 && C == 3 || 0", 1),
    ],
)
def test_expression_has_its_value(expression: str, value: int) -> None:
    assert shared_bytes(expression) == value


def test_complete_op_has_sizes_of_its_own() -> None:
    assert shared_bytes("R * 100 + S * 10 + G", CONV, "// interface: conv\n") == 322
    with pytest.raises(ConvswapError, match="'K' is not a size"):
        shared_bytes("K", CONV, "// interface: conv\n")


def test_launch_has_three_axes_each() -> None:
    text = "  //launch :  grid( B,M , 3 ) block(8,4,2)  \n" + KERNEL
    grid, block, bytes_of_shared = _native.LabSource("mine.cu", text).launch(COURSE, 0)
    assert (grid, block, bytes_of_shared) == ((2, 50, 3), (8, 4, 2), 0)


def test_only_line_says_for_which_convolutions_the_kernel_is() -> None:
    text = "// launch: grid(1) block(1)\n// only: M == 50 && K < 6\n" + KERNEL
    source = _native.LabSource("mine.cu", text)
    assert source.why_not(COURSE) == ""
    assert "only" in source.why_not(_native.Problem((2, 3, 40, 28), (51, 3, 5, 5)))
    assert "a bias" in source.why_not(_native.Problem((2, 3, 40, 28), (50, 3, 5, 5), True))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("B / 0", "divides by zero"),
        ("B % (C - 3)", "divides by zero"),
        ("9223372036854775807 + B", "outgrows 64 bits"),
        ("M * 4000000000 * 4000000000", "outgrows 64 bits"),
        ("0 - 1", "-1 bytes of shared memory"),
        ("100001", "100001 bytes of shared memory"),
        ("B; system", "expected ',' or '\\)'"),
        ("__import__(B)", "expected one of ceil_div"),
        ("B = 3", "expected ',' or '\\)'"),
        ("min(B)", "expected ','"),
        ("", "expected a number"),
    ],
)
def test_invalid_sizes_of_shared_memory_are_refused(expression: str, words: str) -> None:
    with pytest.raises(ConvswapError, match=rf"mine\.cu:1: .*{words}"):
        shared_bytes(expression)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="BMCHWK_outceildv(),+-*/% 0123456789<>=&|!", max_size=60))
def test_any_line_is_read_or_refused(text: str) -> None:
    try:
        value = shared_bytes(text)
    except ConvswapError as error:
        assert "\n" not in str(error)
    else:
        assert 0 <= value <= SHARED_LIMIT
