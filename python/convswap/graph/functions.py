"""Calls of the functions of an ONNX model, and inlining of the functions that contain nodes of a kind.

Calls inside calls multiply.
"""

from __future__ import annotations

import graphlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from convswap.errors import root_cause
from convswap.graph.domain import DOMAIN, DOMAIN_VERSION
from convswap.graph.names import UniqueNames, nodes_of, values_of

# Beyond this, inlining and shape inference, which both walk every copy, take many seconds: a file of a few
# kilobytes, in which each function calls the next one twice, can ask for any number of nodes.
MOST_COPIED_NODES = 20_000

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

# onnx-ir's inliner tries name_2, name_3 and so on from the start for every copy of a name, so n copies take
# n² / 2 tries; this many are a second or two.
MOST_NAME_TRIES = 5_000_000

NodeTest = Callable[[ir.Node], bool]
Reasons = dict[ir.OperatorIdentifier, str]


def give_references_graphs(model: ir.Model) -> None:
    """Let each attribute in functions of `model` that refers to a graph of the call have one without nodes.

    As a branch of an If may do. onnx-ir walks the graphs of nodes whether they are there or not; it still
    writes the attribute as a reference.
    """
    for function in model.functions.values():
        _give_references_graphs(function)


def _give_references_graphs(nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        for name, attribute in list(node.attributes.items()):
            if attribute.type not in _GRAPHS:
                continue
            if attribute.is_ref():
                alone = attribute.type == ir.AttributeType.GRAPH
                value = ir.Graph([], [], nodes=[]) if alone else ()
                node.attributes[name] = ir.Attr(name, attribute.type, value, attribute.ref_attr_name)
            else:
                for graph in _graphs_of(attribute):
                    _give_references_graphs(graph)


def takes_graph(function: ir.Function, calls: Iterable[ir.Node]) -> bool:
    """Return whether one of `calls` gives `function` a graph as an attribute, or it has one by default."""
    attributes = [
        *function.attributes.values(),
        *(each for call in calls for each in call.attributes.values()),
    ]
    return any(attribute.type in _GRAPHS for attribute in attributes)


def calls_of_functions(model: ir.Model) -> Iterator[ir.Node]:
    """Return the nodes of `model` that call one of its functions, at any depth."""
    return (node for node in nodes_of(model) if node.op_identifier() in model.functions)


def nodes_given_to(call: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes of the graphs that `call` gives its function as attributes, at any depth."""
    for attribute in call.attributes.values():
        if attribute.type in _GRAPHS and not attribute.is_ref():
            for graph in _graphs_of(attribute):
                yield from ir.traversal.RecursiveGraphIterator(graph)


def _graphs_of(attribute: ir.Attr) -> Iterable[ir.Graph]:
    return [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()


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


def inline_functions_with(model: ir.Model, is_wanted: NodeTest) -> tuple[ir.Model, Reasons]:
    """Return `model` without the functions that contain a wanted node, and why some of them stay.

    A function counts if it contains such a node itself or calls, at any depth, a function that does. Where
    there are none, `model` itself is returned, else a copy. A function stays if an op in it means something
    else in the model's opset, if it is given a graph or called by one, which onnx-ir's inliner cannot do, if
    a function that stays calls it, if nothing calls it, or if its copies would be too many. References to
    graphs in `model` itself get one, see `give_references_graphs`, and functions that are given graphs with
    wanted nodes import the domain of our ops.
    """
    give_references_graphs(model)
    _import_our_ops_where_graphs_are_given(model, is_wanted)
    found = _functions_with(model, is_wanted)
    if not found:
        return model, {}
    try:
        inlined = model.clone()
        reasons = _adopt_opsets_of_model(inlined, found, is_wanted)
        reasons |= _with_graphs_as_attributes(inlined, found)
        reasons |= _called_from(inlined, found, reasons)
        wanted = [identifier for identifier in inlined.functions if identifier in found - reasons.keys()]
        _refuse_too_many_names(inlined, count_copies(inlined, wanted))
        for identifier in wanted:
            _give_outputs_values_of_their_own(inlined.functions[identifier])
        _complete_outputs_of_calls(inlined, wanted)
        _avoid_names_of_graphs(inlined, wanted)
        InlinePass(criteria=lambda function: function.identifier() in wanted)(inlined)
    except (ValueError, RuntimeError, KeyError, AssertionError, ir.passes.InvariantError) as error:
        # The pass works in place, so a failed attempt is thrown away as a whole.
        return model, dict.fromkeys(found, f"it cannot be inlined: {root_cause(error)}")
    return inlined, {
        identifier: reasons.get(identifier, "nothing calls it")
        for identifier in inlined.functions
        if identifier in found
    }


def _functions_with(model: ir.Model, is_wanted: NodeTest) -> set[ir.OperatorIdentifier]:
    callers = defaultdict(set)
    found = set()
    for identifier, function in model.functions.items():
        for node in function.all_nodes():
            callers[node.op_identifier()].add(identifier)
            if is_wanted(node):
                found.add(identifier)
    waiting = list(found)
    while waiting:
        more = callers[waiting.pop()] - found
        found |= more
        waiting += more
    return found


def _adopt_opsets_of_model(
    model: ir.Model, functions: Iterable[ir.OperatorIdentifier], is_wanted: NodeTest
) -> Reasons:
    reasons = {}
    for identifier in functions:
        reason = _adopt_opsets(model.functions[identifier], model, is_wanted)
        if reason is not None:
            reasons[identifier] = reason
    return reasons


def _import_our_ops_where_graphs_are_given(model: ir.Model, is_wanted: NodeTest) -> None:
    """Let ONNX Runtime find our ops in graphs that functions take: it looks among the function's domains."""
    calls = list(calls_of_functions(model))
    if any(is_wanted(node) for call in calls for node in nodes_given_to(call)):
        # All of them, since one may hand the graph on to another.
        for identifier in {call.op_identifier() for call in calls}:
            function = model.functions[identifier]
            if takes_graph(function, [call for call in calls if call.op_identifier() == identifier]):
                function.opset_imports[DOMAIN] = DOMAIN_VERSION


def _with_graphs_as_attributes(model: ir.Model, found: set[ir.OperatorIdentifier]) -> Reasons:
    """Return the functions that are given graphs, and those that such graphs call."""
    reasons: Reasons = {}
    calls = defaultdict(list)
    for call in calls_of_functions(model):
        calls[call.op_identifier()].append(call)
        called = {node.op_identifier() for node in nodes_given_to(call)} & found
        reasons |= dict.fromkeys(
            called, f"a graph that function {call.op_type!r} takes as an attribute calls it"
        )
    for identifier in found:
        if takes_graph(model.functions[identifier], calls[identifier]):
            reasons[identifier] = "it takes a graph as an attribute, and such a function cannot be inlined"
    return reasons


def _called_from(model: ir.Model, found: set[ir.OperatorIdentifier], staying: Reasons) -> Reasons:
    """Return the functions that those which stay call: inlined there, their ops would change their opset."""
    reasons: Reasons = {}
    waiting = [
        (identifier, model.functions[identifier].name, reason) for identifier, reason in staying.items()
    ]
    while waiting:
        identifier, name, reason = waiting.pop()
        nodes = model.functions[identifier].all_nodes()
        called = {node.op_identifier() for node in nodes} & found - reasons.keys() - staying.keys()
        reasons |= dict.fromkeys(called, f"function {name!r} calls it and stays: {reason}")
        waiting += [(callee, name, reason) for callee in called]
    return reasons


def _refuse_too_many_names(model: ir.Model, copies: Mapping[ir.OperatorIdentifier, int]) -> None:
    """Raise ValueError where finding free names for that many copies of functions would take too long."""
    names: Counter[tuple[str, str | None]] = Counter()
    for identifier, times in copies.items():
        for node in model.functions[identifier].all_nodes():
            names["node", node.name] += times
            for output in node.outputs:
                names["value", output.name] += times
    if sum(times**2 for times in names.values()) // 2 > MOST_NAME_TRIES:
        raise ValueError("functions are called too often for onnx-ir's inliner to name the copies in time")


def _adopt_opsets(function: ir.Function, model: ir.Model, is_wanted: NodeTest) -> str | None:
    """Give `function` the model's opset versions, or return which of its ops mean something else in them."""
    for domain, version in function.opset_imports.items():
        wanted = model.opset_imports.get(domain, version)
        if wanted == version:
            continue
        for node in function.all_nodes():
            # A function is found by its name, whatever version of its domain is imported.
            if node.domain != domain or is_wanted(node) or node.op_identifier() in model.functions:
                continue
            if not _same_op(node, version, wanted):
                return (
                    f"its {node.op_type} is of opset {version}, the model's of opset {wanted}; "
                    "convert the function to the opset of the model"
                )
        function.opset_imports[domain] = wanted
    return None


def _same_op(node: ir.Node, version: int, other_version: int) -> bool:
    try:
        since = [
            onnx.defs.get_schema(node.op_type, number, node.domain).since_version
            for number in (version, other_version)
        ]
    except onnx.defs.SchemaError:
        return False
    return since[0] == since[1]


def _give_outputs_values_of_their_own(function: ir.Function) -> None:
    """Put an Identity before outputs that are inputs or come twice.

    The inliner would give such a value the name of the call's output, and so rename the caller's input.
    """
    seen = set(function.inputs)
    for index, output in enumerate(function.outputs):
        if output in seen:
            identity = ir.node("Identity", [output])
            identity.outputs[0].name = f"{output.name}/output_{index}"
            function.append(identity)
            function.outputs[index] = identity.outputs[0]
        seen.add(output)


def _complete_outputs_of_calls(model: ir.Model, functions: Collection[ir.OperatorIdentifier]) -> None:
    """Name the outputs that calls leave out: the inliner wants them all, and goes by their names."""
    of_functions = (_graphs_in(function) for function in model.functions.values())
    taken = UniqueNames.of_values([*model.graphs(), *itertools.chain.from_iterable(of_functions)])
    for node in nodes_of(model):
        if node.op_identifier() in functions:
            function = model.functions[node.op_identifier()]
            node.resize_outputs(len(function.outputs))
            for output, own in zip(node.outputs, function.outputs, strict=True):
                if not output.name:
                    output.name = taken.take(f"{function.name}/{own.name}")


def _graphs_in(function: ir.Function) -> list[ir.Graph]:
    return [function.graph, *function.subgraphs()]


def _avoid_names_of_graphs(model: ir.Model, functions: Iterable[ir.OperatorIdentifier]) -> None:
    """Rename values of `functions` that some graph of `model` has too.

    The inliner keeps names unique among the graphs it has seen, and sees subgraphs only after it has chosen.
    """
    taken = UniqueNames.of_values(model.graphs())
    for identifier in functions:
        function = model.functions[identifier]
        for value in [value for graph in _graphs_in(function) for value in values_of(graph)]:
            if value.name in taken:
                value.name = taken.take(f"{function.name}/{value.name}")
