"""Swap the Conv nodes of an ONNX model, one for one, for the library's op."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from convswap.errors import ConvswapError, root_cause, unknown_name
from convswap.graph.domain import (
    DOMAIN,
    DOMAIN_VERSION,
    SUPPORTED_ELEMENT_TYPES,
    is_named_convolution,
    is_our_conv,
    is_ours,
    op_name,
    why_no_conv,
)
from convswap.graph.functions import Reasons, inline_functions_with
from convswap.graph.fusion.depthwise import fuse_depthwise
from convswap.graph.fusion.fuse import Fused, NotFused, Stage, fuse_convs
from convswap.graph.model_file import load_model, model_from_proto, no_model, save_model
from convswap.graph.names import name_from_output, name_pattern, node_names
from convswap.graph.serialisation import copy_of, to_proto
from convswap.graph.value_types import ValueTypes

DEFAULT_PRECISION = "tf32"
PRECISIONS = ("tf32", "ieee")
SUPPORTED_RANKS = range(3, 6)
# A note for models with Convs in float16. Of bfloat16 ONNX Runtime's CPU provider has no kernels.
FLOAT16_ON_CPU = (
    "on the CPU ONNX Runtime keeps float32 between float16 nodes, where a swapped Conv rounds its result to "
    "float16: beyond 65504 it becomes infinite"
)


@dataclass(frozen=True)
class Left:
    """A convolution that was not swapped: its node, its op (with the domain, if not ONNX's own), and why."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class SwapResult:
    """A model with its Convs swapped, and what was done to it.

    `model` shares its tensors with the model that was given, and external data stay in the files they are in.
    `swapped` names the nodes swapped by this call, in the order of the graph; `left` has the convolutions
    that were not; nodes that were swapped before are in neither. `source` is the file that was read, if any.
    `fused` has the Convs that took in what followed them, or a depthwise Conv in front, which `swapped` names
    too; `not_fused`, where fusing was asked for, what could not be taken in. `notes` are sentences for a
    reader, without a full stop.
    """

    model: ir.Model
    swapped: tuple[str, ...]
    left: tuple[Left, ...]
    source: Path | None = None
    fused: tuple[Fused, ...] = ()
    not_fused: tuple[NotFused, ...] = ()
    notes: tuple[str, ...] = ()

    def to_proto(self) -> onnx.ModelProto:
        """Return the swapped model as a protobuf message; external data remain references to their files."""
        return to_proto(self.model)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the swapped model to `path`, completely or not at all; see `model_file.save_model`.

        Raises:
            ConvswapError: `path` is the model that was read, or its external data, and `force` is not set;
                or it cannot be written.
        """
        save_model(self.model, path, force=force, source=self.source)

    def report(self) -> dict[str, Any]:
        """Return what was done, ready for JSON.

        `{"swapped": [name, …], "left": [{"node", "op", "reason"}, …],
        "fused": [{"node", "op", "taken": [{"op", "node"}, …]}, …],
        "not_fused": [{"node", "follower", "op", "reason"}, …]}`, and the "notes" where there are any.
        """
        return {
            "swapped": list(self.swapped),
            "left": [{"node": left.node, "op": left.op, "reason": left.reason} for left in self.left],
            "fused": [fused.to_json() for fused in self.fused],
            "not_fused": [not_fused.to_json() for not_fused in self.not_fused],
            **({"notes": list(self.notes)} if self.notes else {}),
        }


def swap(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    algorithm: str = "auto",
    precision: str = DEFAULT_PRECISION,
    only: str | None = None,
    fold: bool = True,
    fuse: bool = False,
) -> SwapResult:
    """Return a copy of `model` in which the library's op takes the place of every Conv it can compute.

    A Conv of the ONNX domain becomes `convswap.Conv`, version 1, in the main graph, in subgraphs and in
    functions. The node keeps its name, attributes, metadata, inputs and outputs; trailing empty inputs are
    dropped; a node without a name gets one made from its output's, and of nodes that share a name all but the
    first get a number, see `node_names`. Constant biases, scales and batch normalisations behind it are
    folded into its W and B, as ONNX Runtime's optimiser does with ONNX's own Conv and not with ours: the node
    then has the output of the last of them. Functions that contain a Conv, themselves or through functions
    they call, are inlined, because ONNX Runtime loads no custom op inside a function; other functions stay.
    What the model says of the shapes of values that nodes read is taken away where it does not follow from
    its inputs and constants, see `ValueTypes.correct`.

    A swapped model comes back unchanged: nodes that were swapped before keep their algorithm, precision and
    what was tuned.

    With `fuse`, a Conv takes in what follows it, as `fuse.fuse_convs` says, and becomes `convswap.FusedConv`;
    so do Convs that were swapped before. Then a 1x1 Conv takes in the depthwise Conv whose result it alone
    reads, as `depthwise.fuse_depthwise` says.

    Args:
        model: the path of an ONNX file, or a model in memory, which is not modified.
        algorithm: the name of an algorithm of the catalog for every swapped node, "auto" or "tuned".
        precision: "tf32" or "ieee".
        only: a regular expression; only Convs whose name contains a match are swapped, or fused.
        fold: whether Convs that are swapped take in the constant biases, scales and batch normalisations that
            follow them.
        fuse: whether Convs, also those swapped before, take in these and the residuals, activations and
            poolings that follow them, and 1x1 Convs depthwise ones in front of them.

    Raises:
        ConvswapError: the model cannot be read, has no Conv that can be swapped, or an argument is not known.
    """
    if algorithm != "auto":
        # Imported here so that a model can be swapped where the compiled catalog is not needed.
        from convswap.graph.algorithms import check_algorithm

        check_algorithm(algorithm)
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    wanted = name_pattern(only, "node names", "conv[12]$")

    def is_wanted(name: str) -> bool:
        return wanted.search(name) is not None

    def why_unwanted(name: str) -> str | None:
        return None if is_wanted(name) else f"its name does not match {wanted.pattern!r}"

    swapping = _swapped(model, lambda _: NodeChoice(algorithm, precision), why_unwanted, fuses=fuse)
    if not fuse:
        # As ONNX Runtime's optimiser does where the Conv is ONNX's own.
        stages = dict.fromkeys(swapping.nodes if fold else (), Stage.FOLDED)
        folded, _ = fuse_convs(swapping.copy, stages, swapping.names, swapping.types)
        return swapping.result(folded)
    fused, not_fused = _fuse_all(swapping, is_wanted)
    fused, apart = fuse_depthwise(swapping.copy, swapping.names, swapping.types, is_wanted, fused)
    return swapping.result(fused, (*not_fused, *apart))


def swap_apart(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> SwapResult:
    """Return what `swap` returns with `fuse`, but with every Conv in a node of its own.

    Raises:
        ConvswapError: the model cannot be read, or has no Conv that can be swapped.
    """
    swapping = _swapped(model, lambda _: NodeChoice(), lambda _: None, fuses=True)
    return swapping.result(*_fuse_all(swapping, lambda _: True))


def _fuse_all(
    swapping: _Swapping, is_wanted: Callable[[str], bool]
) -> tuple[tuple[Fused, ...], tuple[NotFused, ...]]:
    """Have all Convs of ours whose names are wanted take in what follows them."""
    names = swapping.names
    convs = [node for node in _nodes(swapping.copy) if is_our_conv(node) and is_wanted(names[node])]
    return fuse_convs(swapping.copy, dict.fromkeys(convs, Stage.POOL), names, swapping.types)


@dataclass(frozen=True)
class NodeChoice:
    """How a Conv is swapped, and up to what it takes in what follows it.

    `tuned` has lines of a tuning table about its own problems, which count where the algorithm is "auto".
    Where a depthwise Conv and the 1x1 Conv behind it both `may_pair`, one node computes them.
    """

    algorithm: str = "auto"
    precision: str = DEFAULT_PRECISION
    last: Stage = Stage.POOL
    tuned: tuple[str, ...] = ()
    may_pair: bool = False


def swap_chosen(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    choices: Mapping[str, NodeChoice],
    why_others: str,
) -> SwapResult:
    """Return a copy of `model` in which the Convs that `choices` name are swapped, each in its own way.

    All else is as `swap` does it; the names are those that it gives. The other Convs are left for the reason
    `why_others`; `not_fused` is empty.

    Raises:
        ConvswapError: the model cannot be read, or none of these Convs can be swapped.
    """
    swapping = _swapped(
        model, choices.__getitem__, lambda name: None if name in choices else why_others, fuses=True
    )
    stages = {node: choices[swapping.names[node]].last for node in swapping.nodes}
    fused, _ = fuse_convs(swapping.copy, stages, swapping.names, swapping.types)
    pairing = {name for name, choice in choices.items() if choice.may_pair}
    if pairing:
        fused, _ = fuse_depthwise(swapping.copy, swapping.names, swapping.types, pairing.__contains__, fused)
    return swapping.result(fused)


@dataclass(frozen=True)
class _Swapping:
    """A copy of a model with Convs swapped and nothing fused; `types` knows its values as it was."""

    copy: ir.Model
    names: Mapping[ir.Node, str]
    types: ValueTypes
    nodes: Sequence[ir.Node]  # those swapped
    left: Sequence[Left]
    source: Path | None
    notes: tuple[str, ...] = ()

    def result(self, fused: Sequence[Fused] = (), not_fused: Sequence[NotFused] = ()) -> SwapResult:
        swapped = tuple(self.names[node] for node in self.nodes)
        return SwapResult(
            self.copy, swapped, tuple(self.left), self.source, tuple(fused), tuple(not_fused), self.notes
        )


def _swapped(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    choice_of: Callable[[str], NodeChoice],
    why_unwanted: Callable[[str], str | None],
    *,
    fuses: bool,
) -> _Swapping:
    """Return a copy of `model` with its Convs swapped. `fuses`: Convs, also swapped before, will be fused."""
    copy, name, source = _own_copy(model)
    copy, why_not_inlined = inline_functions_with(copy, _is_conv)

    names = node_names(copy)
    types = ValueTypes(copy)
    # All reasons come before the first change, because types are inferred from the model as it was.
    reasons = {
        node: _why_left(node, names[node], why_unwanted, types)
        for node in _nodes(copy)
        if _is_convolution(node, copy)
    }
    to_swap = [node for node, reason in reasons.items() if reason is None]
    left = [
        Left(names[node], op_name(node), reason) for node, reason in reasons.items() if reason is not None
    ]
    left += _left_in_functions(copy, why_not_inlined)
    if not to_swap and not any(is_ours(node) for node in _nodes(copy)):
        raise _nothing_to_swap(name, left)
    float16 = any(types.element_type(_values(node)) == ir.DataType.FLOAT16 for node in to_swap)
    if to_swap or fuses:
        types.correct()
    for node in to_swap:
        _become_custom_op(node, names[node], choice_of(names[node]))
    if to_swap:
        copy.opset_imports[DOMAIN] = DOMAIN_VERSION
    return _Swapping(copy, names, types, to_swap, left, source, (FLOAT16_ON_CPU,) if float16 else ())


def _own_copy(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
) -> tuple[ir.Model, str, Path | None]:
    """Return a model that may be changed, what to call it in messages, and the file it came from."""
    if isinstance(model, onnx.ModelProto):
        # Inlining may rename tensors, which belong to the caller.
        own = copy_of(model) if model.functions else model
        return model_from_proto(own), "the model", None
    if isinstance(model, ir.Model):
        try:
            return model.clone(), "the model", None
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConvswapError(f"the model is not a valid ONNX model: {root_cause(error)}") from error
    if isinstance(model, (str, os.PathLike)):
        return load_model(model), f"'{model}'", Path(model)
    raise no_model(model, "a path, an onnx.ModelProto or an onnx_ir.Model")


def _is_conv(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "Conv")


def _is_convolution(node: ir.Node, model: ir.Model) -> bool:
    if is_ours(node) or node.op_identifier() in model.functions:
        return False
    return is_named_convolution(node.op_type)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return ir.traversal.RecursiveGraphIterator(model.graph)


def _why_left(
    node: ir.Node, label: str, why_unwanted: Callable[[str], str | None], types: ValueTypes
) -> str | None:
    """Return why the library cannot take over `node`, or None if it can."""
    other_op = _why_other_op(node)
    if other_op is not None:
        return other_op
    unwanted = why_unwanted(label)
    if unwanted is not None:
        return unwanted
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return "it has no weight: a valid Conv has the inputs X, W and, optionally, B"
    if not node.outputs:
        return "it has no output"
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return "its attributes refer to those of a function"
    values = _values(node)
    element_type = types.element_type(values)
    if element_type is None:
        return "its element type is unknown: declare the types of the graph's inputs"
    if element_type not in SUPPORTED_ELEMENT_TYPES:
        supported = ", ".join(sorted(_type_name(known) for known in SUPPORTED_ELEMENT_TYPES))
        return f"its element type is {_type_name(element_type)}; the library computes {supported}"
    rank = types.rank([values[1], values[0], node.outputs[0]])
    if rank is not None and rank not in SUPPORTED_RANKS:
        return f"its data have rank {rank}; the library computes ranks 3, 4 and 5 (1-D, 2-D and 3-D)"
    return None


def _values(node: ir.Node) -> list[ir.Value]:
    return [value for value in (*node.inputs, *node.outputs) if value is not None]


def _why_other_op(node: ir.Node) -> str | None:
    if _is_conv(node):
        return None
    known = why_no_conv(node.domain, node.op_type)
    return f"{op_name(node)} {known or 'is not Conv of the ONNX domain, the only op that is swapped'}"


def _type_name(element_type: ir.DataType) -> str:
    return {"float": "float32", "double": "float64"}.get(element_type.name.lower(), element_type.name.lower())


def _become_custom_op(node: ir.Node, name: str, choice: NodeChoice) -> None:
    inputs = len(node.inputs)
    while node.inputs[inputs - 1] is None:
        inputs -= 1
    node.resize_inputs(inputs)
    node.name = name
    node.domain = DOMAIN
    node.version = None
    if choice.algorithm != "auto":
        node.attributes["algorithm"] = ir.AttrString("algorithm", choice.algorithm)
    if choice.precision != DEFAULT_PRECISION:
        node.attributes["precision"] = ir.AttrString("precision", choice.precision)
    if choice.tuned:
        node.attributes["tuned"] = ir.AttrString("tuned", "\n".join(choice.tuned))


def _left_in_functions(model: ir.Model, reasons: Reasons) -> Iterator[Left]:
    for identifier, function in model.functions.items():
        for node in function.all_nodes():
            if _is_convolution(node, model):
                label = node.name or name_from_output(node)
                reason = (
                    _why_other_op(node) or f"it is inside function {function.name!r}: {reasons[identifier]}"
                )
                yield Left(label, op_name(node), reason)


def _nothing_to_swap(name: str, left: list[Left]) -> ConvswapError:
    if not left:
        return ConvswapError(
            f"{name} has no Conv node, so there is nothing to swap; expected a model with a Conv"
        )
    first = left[0]
    others = f", and {len(left) - 1} more" if len(left) > 1 else ""
    return ConvswapError(
        f"{name} has no Conv that can be swapped: {first.op} node {first.node!r} is left "
        f"because {first.reason}{others}"
    )
