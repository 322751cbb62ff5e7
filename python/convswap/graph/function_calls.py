"""Count what inlining the functions of an ONNX model makes of them: calls inside calls multiply."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Collection

import onnx_ir as ir

# Beyond this, inlining and shape inference, which both walk every copy, take many seconds: a file of a few
# kilobytes, in which each function calls the next one twice, can ask for any number of nodes.
MOST_COPIED_NODES = 20_000


def count_copies(
    model: ir.Model, functions: Collection[ir.OperatorIdentifier]
) -> dict[ir.OperatorIdentifier, int]:
    """Return how often the body of each of `functions` is copied where all calls of them are inlined.

    Raises:
        ValueError: a function calls itself, directly or through others, or the copies have more than
            MOST_COPIED_NODES nodes together.
    """
    calls = {identifier: _calls_in(model.functions[identifier], functions) for identifier in functions}
    try:
        callees_first = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(f"{domain}::{name}" for domain, name, _ in error.args[1])
        raise ValueError(f"Cyclic dependency between functions: {cycle}") from None
    copies = _calls_in(model.graph, functions)
    for identifier, function in model.functions.items():
        if identifier not in calls:
            copies += _calls_in(function, functions)
    nodes = 0
    for identifier in reversed(callees_first):
        nodes += copies[identifier] * sum(1 for _ in model.functions[identifier].all_nodes())
        if nodes > MOST_COPIED_NODES:
            raise ValueError(f"the calls of functions in functions give more than {MOST_COPIED_NODES} nodes")
        for callee, times in calls[identifier].items():
            # A function that nothing calls has its own calls inlined, too.
            copies[callee] += times * max(1, copies[identifier])
    return dict(copies)


def _calls_in(
    body: ir.Graph | ir.Function, functions: Collection[ir.OperatorIdentifier]
) -> Counter[ir.OperatorIdentifier]:
    nodes = ir.traversal.RecursiveGraphIterator(body)
    return Counter(node.op_identifier() for node in nodes if node.op_identifier() in functions)
