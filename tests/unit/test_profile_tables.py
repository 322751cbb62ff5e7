"""Tables of a profile have nvprof's sums, columns and units."""

from __future__ import annotations

import pytest
from convswap.profiling.records import (
    KERNEL,
    MEMCPY,
    MEMSET,
    Activity,
    AttributedActivity,
    Call,
    CallInWindow,
    NodeRun,
)
from convswap.profiling.report import short_name
from convswap.profiling.result import (
    activity_entries,
    call_entries,
    entries_over_90_percent,
    node_times,
    nvprof_time,
    percent,
)
from hypothesis import given
from hypothesis import strategies as st

CONV1, CONV2 = NodeRun("conv1", "Conv", 0, 1), NodeRun("conv2", "Conv", 2, 3)


def work(name: str, duration: int, node: NodeRun | None = None, kind: str = KERNEL) -> AttributedActivity:
    return AttributedActivity(Activity(kind, name, 100, 100 + duration, 1), None, node)


EXAMPLE = [
    work("_Z4convPf", 600, CONV1),
    work("_Z4convPf", 200, CONV2),
    work("_Z4biasPf", 50, CONV2),
    work("[CUDA memcpy HtoD]", 100, kind=MEMCPY),
    work("[CUDA memcpy DtoH]", 30, kind=MEMCPY),
    work("[CUDA memset]", 20, CONV1, kind=MEMSET),
]


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        # From outputs of nvprof.
        (992, "992ns"),
        (5_751, "5.7510us"),
        (11_744, "11.744us"),
        (499_230, "499.23us"),
        (1_083_500, "1.0835ms"),
        (97_765_000, "97.765ms"),
        (4_674_560_000, "4.67456s"),
        # Rounding reaches the next unit or digit.
        (0, "0ns"),
        (999.4, "999ns"),
        (999.5, "1.0000us"),
        (999.6, "1.0000us"),
        (999_996, "1.0000ms"),
        (9_999_960, "10.000ms"),
        (999_999_000, "1.00000s"),
        (9_999_999_000, "10.0000s"),
        (123_456_789_000_000, "123457s"),
    ],
)
def test_times_are_written_as_nvprof_writes_them(nanoseconds, text):
    assert nvprof_time(nanoseconds) == text


@given(st.floats(1, 1e15))
def test_a_written_time_is_the_time_to_five_digits(nanoseconds):
    text = nvprof_time(nanoseconds)
    unit = next(unit for unit in ("ns", "us", "ms", "s") if text.endswith(unit))
    value = float(text.removesuffix(unit)) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    # Times that round to less than a microsecond are written in whole nanoseconds.
    is_short = nanoseconds < 1000
    assert value == pytest.approx(nanoseconds, rel=0 if is_short else 6e-5, abs=0.5 if is_short else 0)
    assert float(text.removesuffix(unit)) < 1000 or unit == "s"


def test_a_row_sums_up_all_calls_of_a_name_and_names_its_nodes_by_their_time():
    rows = {entry.name: entry for entry in activity_entries(EXAMPLE)}
    assert [*rows] == [
        "conv(float*)",
        "[CUDA memcpy HtoD]",
        "bias(float*)",
        "[CUDA memcpy DtoH]",
        "[CUDA memset]",
    ]
    conv = rows["conv(float*)"]
    assert (conv.total, conv.calls, conv.average, conv.shortest, conv.longest) == (800, 2, 400, 200, 600)
    assert conv.share == 0.8
    assert percent(conv.share) == "80.00%"
    assert conv.nodes == ("conv1", "conv2")
    assert rows["[CUDA memcpy HtoD]"].nodes == ("(inputs)",)
    assert rows["[CUDA memcpy DtoH]"].nodes == ("(outputs)",)
    assert rows["[CUDA memset]"].nodes == ("conv1",)


def test_the_nodes_together_are_all_of_the_time():
    rows = node_times(EXAMPLE)
    assert [(row.node, row.op, row.total, row.calls) for row in rows] == [
        ("conv1", "Conv", 620, 2),
        ("conv2", "Conv", 250, 2),
        ("(inputs)", "", 100, 1),
        ("(outputs)", "", 30, 1),
    ]
    assert sum(row.total for row in rows) == sum(one.activity.duration for one in EXAMPLE)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert rows[1].kernels == ("conv(float*)", "bias(float*)")


def test_work_of_no_node_that_is_no_copy_from_or_to_the_host_is_shown_as_such():
    rows = node_times([work("lost", 5), work("[CUDA memcpy DtoD]", 7, kind=MEMCPY)])
    assert [(row.node, row.total) for row in rows] == [("(no node)", 12)]


def test_api_calls_have_rows_of_their_own():
    calls = [
        Call("cudaLaunchKernel", 0, 5, 1),
        Call("cudaMemcpyAsync", 10, 40, 2),
        Call("cudaLaunchKernel", 50, 57, 3),
    ]
    rows = call_entries(CallInWindow(call, None) for call in calls)
    assert [(row.name, row.total, row.calls) for row in rows] == [
        ("cudaMemcpyAsync", 30, 1),
        ("cudaLaunchKernel", 12, 2),
    ]
    assert rows[0].nodes == ()


def test_what_takes_more_than_ninety_percent_is_the_fewest_rows_that_do():
    assert [entry.name for entry in entries_over_90_percent(activity_entries(EXAMPLE))] == [
        "conv(float*)",
        "[CUDA memcpy HtoD]",
        "bias(float*)",
    ]
    # Exactly 90 % is not more than 90 %.
    ten = activity_entries([work("a", 90), work("b", 10)])
    assert [entry.name for entry in entries_over_90_percent(ten)] == ["a", "b"]
    assert entries_over_90_percent(activity_entries([])) == ()
    assert len(entries_over_90_percent(activity_entries([work("a", 0), work("b", 0)]))) <= 2


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40))
def test_one_row_less_would_not_be_ninety_percent(durations):
    rows = activity_entries([work(str(number), duration) for number, duration in enumerate(durations)])
    top_rows = entries_over_90_percent(rows)
    total = sum(durations)
    assert 10 * sum(row.total for row in top_rows) > 9 * total
    assert 10 * sum(row.total for row in top_rows[:-1]) <= 9 * total


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void convswap::cuda::kernel<float, 3>(float const*, int)", "convswap::cuda::kernel"),
        ("tick(float*, int)", "tick"),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, Of<float const> >(Of<float>)",
            "internal::gemvx::kernel",
        ),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(cutlass_80_tensorop::Params)", "cutlass::Kernel2"),
        ("(anonymous namespace)::copy()", "copy"),
        ("sm90_xmma_fprop", "sm90_xmma_fprop"),
        ("[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]"),
    ],
)
def test_kernels_are_named_shortly_in_a_sentence(name, short):
    assert short_name(name) == short
