"""Inline those functions of an ONNX model that contain nodes of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from convswap.model_file import root_cause
from convswap.value_types import values_of

NodeTest = Callable[[ir.Node], bool]
Reasons = dict[ir.OperatorIdentifier, str]


def inline_functions_with(model: ir.Model, is_wanted: NodeTest) -> tuple[ir.Model, Reasons]:
    """Return `model` without the functions that contain a wanted node, and why some of them stay.

    A function counts if it contains such a node itself or calls, at any depth, a function that does. Where
    there are none, `model` itself is returned, else a copy. A function stays if an op in it means something
    else in the model's opset, if nothing calls it, or if onnx-ir's inliner fails (on graph parameters).
    """
    found = _functions_with(model, is_wanted)
    if not found:
        return model, {}
    try:
        inlined = model.clone()
        reasons = _adopt_opsets_of_model(inlined, found, is_wanted)
        wanted = [identifier for identifier in inlined.functions if identifier in found - reasons.keys()]
        for identifier in wanted:
            _give_outputs_values_of_their_own(inlined.functions[identifier])
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


def unique_name(wanted: str, taken: set[str | None]) -> str:
    """Return `wanted`, with a number where it is taken, and add it to `taken`."""
    name = wanted
    number = 2
    while name in taken:
        name = f"{wanted}_{number}"
        number += 1
    taken.add(name)
    return name


def _functions_with(model: ir.Model, is_wanted: NodeTest) -> set[ir.OperatorIdentifier]:
    found: set[ir.OperatorIdentifier] = set()
    while True:
        more = {
            identifier
            for identifier, function in model.functions.items()
            if identifier not in found
            and any(is_wanted(node) or node.op_identifier() in found for node in function.all_nodes())
        }
        if not more:
            return found
        found |= more


def _adopt_opsets_of_model(
    model: ir.Model, functions: Iterable[ir.OperatorIdentifier], is_wanted: NodeTest
) -> Reasons:
    reasons = {}
    for identifier in functions:
        reason = _adopt_opsets(model.functions[identifier], model.opset_imports, is_wanted)
        if reason is not None:
            reasons[identifier] = reason
    return reasons


def _adopt_opsets(function: ir.Function, opsets: dict[str, int], is_wanted: NodeTest) -> str | None:
    """Give `function` the model's opset versions, or return which of its ops mean something else in them."""
    for domain, version in function.opset_imports.items():
        wanted = opsets.get(domain, version)
        if wanted == version:
            continue
        for node in function.all_nodes():
            if node.domain == domain and not is_wanted(node) and not _same_op(node, version, wanted):
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


def _avoid_names_of_graphs(model: ir.Model, functions: Iterable[ir.OperatorIdentifier]) -> None:
    """Rename values of `functions` that some graph of `model` has too.

    The inliner keeps names unique among the graphs it has seen, and sees subgraphs only after it has chosen.
    """
    taken = {value.name for graph in model.graphs() for value in values_of(graph)}
    for identifier in functions:
        function = model.functions[identifier]
        graphs = [function.graph, *function.subgraphs()]
        for value in [value for graph in graphs for value in values_of(graph)]:
            if value.name in taken:
                value.name = unique_name(f"{function.name}/{value.name}", taken)
