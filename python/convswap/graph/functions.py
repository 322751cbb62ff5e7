"""Calls of functions of an ONNX model, and inlining of the functions that contain certain nodes."""

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

# Limit of nodes after inlining. Inlining and shape inference both walk every copy of a function, and take
# many seconds beyond this limit. Nested calls multiply: a file of a few kilobytes in which each function
# calls the next function twice expands to any number of nodes.
MAX_COPIED_NODES = 20_000

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

# Limit of the tries for unique names. For every copy of a name, onnx-ir's inliner tries name_2, name_3 and so
# on from the start, so n copies take n² / 2 tries. This limit takes a second or two.
MAX_NAME_TRIES = 5_000_000

NodePredicate = Callable[[ir.Node], bool]
Reasons = dict[ir.OperatorIdentifier, str]


def add_placeholder_graphs(model: ir.Model) -> None:
    """Give an empty graph to each attribute in functions of `model` that refers to a graph of the call.

    A branch of an If may be such a reference. onnx-ir walks the graphs of all nodes and fails if an attribute
    has none. It still writes the attribute as a reference. The change is in place.
    """
    for function in model.functions.values():
        _add_placeholder_graphs(function)


def _add_placeholder_graphs(nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        for name, attribute in list(node.attributes.items()):
            if attribute.type not in _GRAPHS:
                continue
            if attribute.is_ref():
                is_single = attribute.type == ir.AttributeType.GRAPH
                value = ir.Graph([], [], nodes=[]) if is_single else ()
                node.attributes[name] = ir.Attr(name, attribute.type, value, attribute.ref_attr_name)
            else:
                for graph in _graphs_of(attribute):
                    _add_placeholder_graphs(graph)


def takes_graph(function: ir.Function, calls: Iterable[ir.Node]) -> bool:
    """Return whether one of `calls` passes a graph to `function`, or an attribute's default is a graph."""
    attributes = [
        *function.attributes.values(),
        *(attribute for call in calls for attribute in call.attributes.values()),
    ]
    return any(attribute.type in _GRAPHS for attribute in attributes)


def calls_of_functions(model: ir.Model) -> Iterator[ir.Node]:
    """Return the nodes of `model` that call one of its functions, at any depth."""
    return (node for node in nodes_of(model) if node.op_identifier() in model.functions)


def nodes_of_graph_attributes(call: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes of the graphs that `call` passes to its function as attributes, at any depth."""
    for attribute in call.attributes.values():
        if attribute.type in _GRAPHS and not attribute.is_ref():
            for graph in _graphs_of(attribute):
                yield from ir.traversal.RecursiveGraphIterator(graph)


def _graphs_of(attribute: ir.Attr) -> Iterable[ir.Graph]:
    return [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()


def count_copies(
    model: ir.Model, functions: Collection[ir.OperatorIdentifier]
) -> dict[ir.OperatorIdentifier, int]:
    """Return how often the body of each of `functions` is copied if all calls of `functions` are inlined.

    Raises:
        ValueError: a function calls itself, directly or through others, or the copies have more than
            MAX_COPIED_NODES nodes together.
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
        if nodes > MAX_COPIED_NODES:
            raise ValueError(f"the calls of functions in functions give more than {MAX_COPIED_NODES} nodes")
        for callee, count in calls[identifier].items():
            # Calls inside a function that nothing calls are inlined, too.
            copies[callee] += count * max(1, copies[identifier])
    return dict(copies)


def _calls_in(
    body: ir.Graph | ir.Function, functions: Collection[ir.OperatorIdentifier]
) -> Counter[ir.OperatorIdentifier]:
    nodes = ir.traversal.RecursiveGraphIterator(body)
    return Counter(node.op_identifier() for node in nodes if node.op_identifier() in functions)


def inline_functions_with(model: ir.Model, is_selected: NodePredicate) -> tuple[ir.Model, Reasons]:
    """Inline the functions of `model` that contain a selected node; return reasons for those that stay, too.

    A function contains a selected node if one of its nodes is selected, or if it calls, at any depth, a
    function that contains one. The result is a copy of `model`, or `model` itself if there is no such
    function or inlining fails.

    A function stays if

    - one of its ops has another meaning in the model's opset;
    - it takes a graph as an attribute, or such a graph calls it: onnx-ir's inliner cannot do either;
    - a function that stays calls it, or nothing calls it;
    - it would be copied too often.

    Changes `model` in two ways: attributes that refer to graphs get an empty graph, see
    `add_placeholder_graphs`, and functions that take graphs with selected nodes import the library's domain.
    """
    add_placeholder_graphs(model)
    _import_domain_for_graph_attributes(model, is_selected)
    selected = _functions_containing(model, is_selected)
    if not selected:
        return model, {}
    try:
        inlined = model.clone()
        reasons = _adopt_opsets_of_model(inlined, selected, is_selected)
        reasons |= _reasons_from_graph_attributes(inlined, selected)
        reasons |= _reasons_from_callers(inlined, selected, reasons)
        to_inline = [
            identifier for identifier in inlined.functions if identifier in selected - reasons.keys()
        ]
        _check_name_count(inlined, count_copies(inlined, to_inline))
        for identifier in to_inline:
            _separate_outputs(inlined.functions[identifier])
        _name_omitted_outputs(inlined, to_inline)
        _rename_values_used_in_graphs(inlined, to_inline)
        InlinePass(criteria=lambda function: function.identifier() in to_inline)(inlined)
    except (ValueError, RuntimeError, KeyError, AssertionError, ir.passes.InvariantError) as error:
        # The pass works in place, so the copy is discarded if the pass fails.
        return model, dict.fromkeys(selected, f"it cannot be inlined: {root_cause(error)}")
    return inlined, {
        identifier: reasons.get(identifier, "nothing calls it")
        for identifier in inlined.functions
        if identifier in selected
    }


def _functions_containing(model: ir.Model, is_selected: NodePredicate) -> set[ir.OperatorIdentifier]:
    callers = defaultdict(set)
    selected = set()
    for identifier, function in model.functions.items():
        for node in function.all_nodes():
            callers[node.op_identifier()].add(identifier)
            if is_selected(node):
                selected.add(identifier)
    pending = list(selected)
    while pending:
        new_callers = callers[pending.pop()] - selected
        selected |= new_callers
        pending += new_callers
    return selected


def _adopt_opsets_of_model(
    model: ir.Model, functions: Iterable[ir.OperatorIdentifier], is_selected: NodePredicate
) -> Reasons:
    reasons = {}
    for identifier in functions:
        reason = _adopt_opsets(model.functions[identifier], model, is_selected)
        if reason is not None:
            reasons[identifier] = reason
    return reasons


def _import_domain_for_graph_attributes(model: ir.Model, is_selected: NodePredicate) -> None:
    """Import the library's domain in functions that take graphs with selected nodes as attributes.

    ONNX Runtime looks up the ops of such a graph in the domains of the function.
    """
    calls = list(calls_of_functions(model))
    if any(is_selected(node) for call in calls for node in nodes_of_graph_attributes(call)):
        # Every function that takes a graph, since a function may pass the graph on to another function.
        for identifier in {call.op_identifier() for call in calls}:
            function = model.functions[identifier]
            if takes_graph(function, [call for call in calls if call.op_identifier() == identifier]):
                function.opset_imports[DOMAIN] = DOMAIN_VERSION


def _reasons_from_graph_attributes(model: ir.Model, selected: set[ir.OperatorIdentifier]) -> Reasons:
    """Return reasons for functions that take graphs as attributes, and callees of such graphs."""
    reasons: Reasons = {}
    calls = defaultdict(list)
    for call in calls_of_functions(model):
        calls[call.op_identifier()].append(call)
        called = {node.op_identifier() for node in nodes_of_graph_attributes(call)} & selected
        reasons |= dict.fromkeys(
            called, f"a graph that function {call.op_type!r} takes as an attribute calls it"
        )
    for identifier in selected:
        if takes_graph(model.functions[identifier], calls[identifier]):
            reasons[identifier] = "it takes a graph as an attribute, and such a function cannot be inlined"
    return reasons


def _reasons_from_callers(
    model: ir.Model, selected: set[ir.OperatorIdentifier], staying_reasons: Reasons
) -> Reasons:
    """Return reasons for the functions that are called by functions which stay.

    Inlined into such a caller, the ops of the callee would get the caller's opset.
    """
    reasons: Reasons = {}
    pending = [
        (identifier, model.functions[identifier].name, reason)
        for identifier, reason in staying_reasons.items()
    ]
    while pending:
        identifier, name, reason = pending.pop()
        nodes = model.functions[identifier].all_nodes()
        called = {node.op_identifier() for node in nodes} & selected - reasons.keys() - staying_reasons.keys()
        reasons |= dict.fromkeys(called, f"function {name!r} calls it and stays: {reason}")
        pending += [(callee, name, reason) for callee in called]
    return reasons


def _check_name_count(model: ir.Model, copies: Mapping[ir.OperatorIdentifier, int]) -> None:
    """Raise ValueError if finding unique names for so many copies of functions would take too long."""
    names: Counter[tuple[str, str | None]] = Counter()
    for identifier, count in copies.items():
        for node in model.functions[identifier].all_nodes():
            names["node", node.name] += count
            for output in node.outputs:
                names["value", output.name] += count
    if sum(count**2 for count in names.values()) // 2 > MAX_NAME_TRIES:
        raise ValueError("functions are called too often for onnx-ir's inliner to name the copies in time")


def _adopt_opsets(function: ir.Function, model: ir.Model, is_selected: NodePredicate) -> str | None:
    """Give `function` the model's opset versions; return a reason if this changes one of its ops."""
    for domain, version in function.opset_imports.items():
        model_version = model.opset_imports.get(domain, version)
        if model_version == version:
            continue
        for node in function.all_nodes():
            # A call finds its function by name, whatever version of its domain is imported.
            if node.domain != domain or is_selected(node) or node.op_identifier() in model.functions:
                continue
            if not _is_same_op(node, version, model_version):
                return (
                    f"its {node.op_type} is of opset {version}, the model's of opset {model_version}; "
                    "convert the function to the opset of the model"
                )
        function.opset_imports[domain] = model_version
    return None


def _is_same_op(node: ir.Node, version: int, other_version: int) -> bool:
    try:
        versions = [
            onnx.defs.get_schema(node.op_type, number, node.domain).since_version
            for number in (version, other_version)
        ]
    except onnx.defs.SchemaError:
        return False
    return versions[0] == versions[1]


def _separate_outputs(function: ir.Function) -> None:
    """Put an Identity before outputs that are also inputs, or that occur twice among the outputs.

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


def _name_omitted_outputs(model: ir.Model, functions: Collection[ir.OperatorIdentifier]) -> None:
    """Name the outputs that calls omit: the inliner needs all outputs and identifies them by name."""
    function_graphs = (_graphs_in(function) for function in model.functions.values())
    value_names = UniqueNames.of_values([*model.graphs(), *itertools.chain.from_iterable(function_graphs)])
    for node in nodes_of(model):
        if node.op_identifier() in functions:
            function = model.functions[node.op_identifier()]
            node.resize_outputs(len(function.outputs))
            for output, function_output in zip(node.outputs, function.outputs, strict=True):
                if not output.name:
                    output.name = value_names.make_unique(f"{function.name}/{function_output.name}")


def _graphs_in(function: ir.Function) -> list[ir.Graph]:
    return [function.graph, *function.subgraphs()]


def _rename_values_used_in_graphs(model: ir.Model, functions: Iterable[ir.OperatorIdentifier]) -> None:
    """Rename values of `functions` whose names also occur in a graph of `model`.

    The inliner keeps names unique among the graphs that it has visited, but it visits subgraphs only after it
    has named the values.
    """
    value_names = UniqueNames.of_values(model.graphs())
    for identifier in functions:
        function = model.functions[identifier]
        for value in [value for graph in _graphs_in(function) for value in values_of(graph)]:
            if value.name in value_names:
                value.name = value_names.make_unique(f"{function.name}/{value.name}")
