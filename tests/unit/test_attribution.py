"""Kernels are attributed to the node and the window during which they were launched, not run."""

from __future__ import annotations

from convswap.profiling.records import (
    KERNEL,
    RUN,
    SET_UP,
    Activity,
    Call,
    NodeRun,
    Records,
    Window,
    attribute,
    calls_in_windows,
    outermost,
)
from hypothesis import given
from hypothesis import strategies as st


def kernel(start: int, correlation: int, length: int = 10) -> Activity:
    return Activity(KERNEL, "kernel", start, start + length, correlation)


def call(start: int, correlation: int, end: int | None = None, thread: int = 1) -> Call:
    return Call("cudaLaunchKernel", start, start + 5 if end is None else end, correlation, thread)


def window(start: int, end: int, number: int = 0, phase: str = RUN, side: str = "convswap") -> Window:
    return Window(side, phase, number, start, end)


def nodes_of(records: Records, nodes: list[NodeRun], windows: list[Window] | None = None) -> list[str | None]:
    attributed = attribute(records, windows or [window(0, 10_000)], nodes)
    return [None if each.node is None else each.node.node for each in attributed]


CONV, RELU = NodeRun("conv", "Conv", 100, 200), NodeRun("relu", "Relu", 200, 300)


def test_a_kernel_belongs_to_the_node_that_launched_it_not_to_the_one_running_when_it_starts():
    records = Records((kernel(250, correlation=7),), (call(120, 7),))
    assert nodes_of(records, [CONV, RELU]) == ["conv"]


def test_where_a_node_seems_to_reach_into_the_next_the_next_counts():
    # Ends of nodes are accurate to 2 us.
    overlapping = NodeRun("conv", "Conv", 100, 2_200)
    records = Records((kernel(5_000, 1), kernel(5_100, 2)), (call(150, 1), call(205, 2)))
    assert nodes_of(records, [overlapping, NodeRun("relu", "Relu", 200, 2_400)]) == ["conv", "relu"]


def test_a_kernel_of_a_subgraph_belongs_to_the_node_within_it():
    branch = NodeRun("if", "If", 100, 900)
    inner = [NodeRun("conv", "Conv", 200, 300), NodeRun("relu", "Relu", 310, 400)]
    starts = [150, 250, 305, 350, 700]
    records = Records(
        tuple(kernel(1000 + 20 * number, number) for number in range(1, 6)),
        tuple(call(start, number) for number, start in enumerate(starts, start=1)),
    )
    assert nodes_of(records, [branch, *inner]) == ["if", "conv", "if", "relu", "if"]


def test_a_launch_outside_all_nodes_belongs_to_none():
    records = Records((kernel(500, 1), kernel(520, 2)), (call(50, 1), call(400, 2)))
    assert nodes_of(records, [CONV, RELU]) == [None, None]


def test_a_kernel_whose_call_was_not_recorded_has_no_node_but_the_window_in_which_it_ran():
    (attributed,) = attribute(Records((kernel(150, 9),), ()), [window(0, 1000)], [CONV])
    assert attributed.node is None
    assert attributed.window == window(0, 1000)


def test_a_kernel_that_runs_after_its_window_counts_for_the_window_of_its_launch():
    first, second = window(0, 1000, 0, SET_UP), window(1001, 2000, 1)
    (attributed,) = attribute(Records((kernel(1500, 3),), (call(990, 3),)), [first, second], [])
    assert attributed.window == first


def test_work_between_windows_has_none():
    (attributed,) = attribute(Records((kernel(1500, 3),), (call(1500, 3),)), [window(0, 1000)], [])
    assert attributed.window is None
    (attributed_call,) = calls_in_windows([call(1500, 3)], [window(0, 1000)])
    assert attributed_call.window is None


def test_calls_of_the_driver_within_a_call_of_the_runtime_are_part_of_it():
    runtime, driver = call(100, 1, end=200), call(110, 2, end=190)
    other_thread = call(120, 3, end=180, thread=2)
    later = call(200, 4, end=210)
    assert outermost([driver, later, other_thread, runtime]) == [runtime, other_thread, later]


def test_a_kernel_that_the_inner_call_launched_keeps_its_node():
    records = Records((kernel(500, 2),), (call(110, 1, end=190), call(120, 2, end=180)))
    assert nodes_of(records, [CONV, RELU]) == ["conv"]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.data())
def test_every_launch_is_found_in_the_node_around_it(lengths, data):
    """Nodes of random lengths, with gaps of one between them."""
    nodes, start = [], 0
    for number, length in enumerate(lengths):
        nodes.append(NodeRun(str(number), "Conv", start, start + length))
        start += length + 1
    chosen = data.draw(st.lists(st.sampled_from(nodes), max_size=20))
    moments = [data.draw(st.integers(node.start, node.end)) for node in chosen]
    records = Records(
        tuple(kernel(start + number, number) for number in range(len(chosen))),
        tuple(call(moment, number) for number, moment in enumerate(moments)),
    )
    assert nodes_of(records, nodes, [window(0, start)]) == [node.node for node in chosen]
