"""Swap the Conv nodes of an ONNX model, one for one, for the library's op."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from convswap import _native
from convswap.errors import ConvswapError, require_count, root_cause, unknown_name
from convswap.graph.algorithms import check_algorithm, takes_codes
from convswap.graph.domain import (
    DOMAIN,
    DOMAIN_VERSION,
    LAYER_NORM_OP,
    MUL_OP,
    SUPPORTED_ELEMENT_TYPES,
    is_convswap_conv,
    is_convswap_op,
    is_layout_op,
    is_named_convolution,
    is_quant_op,
    op_name,
    type_name,
    unsupported_reason,
)
from convswap.graph.functions import Reasons, inline_functions_with
from convswap.graph.fusion.depthwise import fuse_depthwise
from convswap.graph.fusion.fuse import Fused, NotFused, Stage, fuse_convs
from convswap.graph.layout.choose import LAYOUTS, LayoutChange, change_layouts
from convswap.graph.layout.costs import ConversionCosts, Costs, EstimatedCosts
from convswap.graph.layout.library_operators import replace_operators
from convswap.graph.layout.matmuls import replace_matmuls
from convswap.graph.model_file import load_model, model_from_message, not_a_model, save_model
from convswap.graph.names import name_from_output, name_pattern, node_names
from convswap.graph.plain_model import count_swapped
from convswap.graph.quantised.convert import LeftQuantised, quantise_convs
from convswap.graph.quantised.qlinear import expand_qlinear_ops
from convswap.graph.quantised.quantisation import is_dequantize
from convswap.graph.serialisation import copy_of, to_proto
from convswap.graph.value_types import ValueTypes

DEFAULT_PRECISION = "tf32"
PRECISIONS = ("tf32", "ieee")
DEFAULT_LAYOUT = "nchw"
# The default layout if there are QuantConv nodes, whose kernels read NHWC.
QUANTISED_LAYOUT = "nhwc"
SUPPORTED_RANKS = range(3, 6)
# A note for models with float16 Convs. bfloat16 needs none: ONNX Runtime's CPU provider has no kernels for
# it.
FLOAT16_ON_CPU = (
    "on the CPU ONNX Runtime keeps float32 between float16 nodes, where a swapped Conv rounds its result to "
    "float16: beyond 65504 it becomes infinite"
)
NOT_FUSED = "quantised Convs compute floating-point numbers: fuse makes them QuantConv"
QUANTISED_ON_CPU = (
    "QuantConv is for cards: on the CPU ONNX Runtime's own kernels for quantised models are far faster"
)
_NOTES_ON_CPU = (FLOAT16_ON_CPU, QUANTISED_ON_CPU)


@dataclass(frozen=True)
class NotSwapped:
    """A convolution that was not swapped: name of the node, op (with domain, unless ONNX's) and reason."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class SwapResult:
    """A model with its Convs swapped, and a record of the changes.

    Attributes:
        model: the swapped model. It shares its tensors with the original; external data stay in their files.
        swapped: names of the nodes that this call swapped, in the order of the graph.
        not_swapped: the convolutions that were not swapped. Nodes that were swapped before are in neither.
        source: the file that was read, if any.
        fused: the Convs into which other nodes were fused, and means and fully connected layers that became
            QuantConv. `swapped` also names a depthwise Conv that was fused into a 1x1 Conv.
        not_fused: the nodes that could not be fused, if fusing was asked for.
        notes: sentences for the user, without a full stop.
        layout: the tensors that became NHWC, if that was asked for.
        nchw: the swapped model before tensors became NHWC, if any did.
        not_quantised: the quantised nodes that did not become QuantConv, if fusing was asked for. Such a Conv
            computes numbers, and is in `swapped`; other convolutions are in `not_swapped`.
    """

    model: ir.Model
    swapped: tuple[str, ...]
    not_swapped: tuple[NotSwapped, ...]
    source: Path | None = None
    fused: tuple[Fused, ...] = ()
    not_fused: tuple[NotFused, ...] = ()
    notes: tuple[str, ...] = ()
    layout: LayoutChange | None = None
    nchw: ir.Model | None = None
    not_quantised: tuple[LeftQuantised, ...] = ()

    @property
    def nchw_model(self) -> ir.Model:
        """The swapped model before tensors became NHWC; `model` if none did."""
        return self.model if self.nchw is None else self.nchw

    def notes_on(self, device: str) -> tuple[str, ...]:
        """Return the notes that matter on "cpu" or "cuda"."""
        return tuple(note for note in self.notes if device == "cpu" or note not in _NOTES_ON_CPU)

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
        """Return the record of the changes for JSON.

        `{"swapped": [name, …], "left": [{"node", "op", "reason"}, …],
        "fused": [{"node", "op", "taken": [{"op", "node"}, …]}, …],
        "not_fused": [{"node", "follower", "op", "reason"}, …]}`, "notes" if there are any, and "layout"
        if tensors could become NHWC: `{"nhwc": {node: ["input", "residual", "output"], …},
        "carried": [name, …], "transposes_added", "transposes_removed",
        "not_carried": [{"node", "op", "reason"}, …]}`, and "not_quantised" if there are any:
        `[{"node", "op", "reason"}, …]`. The record "layout" has "matmuls" if MatMuls became Convs, like
        "fused", "batch_norms" if BatchNormalizations became Convs that include other nodes, like "fused", and
        "layer_norms" and "muls" if nodes became the library's LayerNormalization or Mul: their names.
        """
        return {
            "swapped": list(self.swapped),
            "left": [asdict(record) for record in self.not_swapped],
            "fused": [record.to_json() for record in self.fused],
            "not_fused": [record.to_json() for record in self.not_fused],
            **({"notes": list(self.notes)} if self.notes else {}),
            **({} if self.layout is None else {"layout": self.layout.to_json()}),
            **self._not_quantised_json(),
        }

    def _not_quantised_json(self) -> dict[str, Any]:
        records = [record.to_json() for record in self.not_quantised]
        return {"not_quantised": records} if records else {}


def swap(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    algorithm: str = "auto",
    precision: str = DEFAULT_PRECISION,
    only: str | None = None,
    fold: bool = True,
    fuse: bool = False,
    quantise: bool = True,
    layout: str | None = None,
    batch: int = 1,
) -> SwapResult:
    """Return a copy of `model` in which the library's op replaces every Conv that the library supports.

    A Conv of the ONNX domain becomes `convswap.Conv`, version 1, in the main graph, in subgraphs and in
    functions. The node keeps its name, attributes, metadata, inputs and outputs. Trailing empty inputs are
    dropped. A node without a name is named after its output; nodes that share a name get numbers, see
    `node_names`.

    Constant biases, scales and batch normalisations after a Conv are folded into its W and B, and so are
    constant scales and biases before it. The node then has the output of the last folded node. ONNX Runtime's
    optimiser does the former, but only for ONNX's Conv.

    Functions that contain a Conv, themselves or through functions that they call, are inlined, because ONNX
    Runtime loads no custom op inside a function. Other functions stay. Declared shapes that do not follow
    from the model's inputs and constants are removed, see `ValueTypes.correct`.

    Nodes that were swapped before keep their algorithm, precision and tuning results. A model in which all
    Convs were swapped before comes back unchanged.

    With `fuse`, the nodes after a Conv are fused into a `convswap.FusedConv`, see `fuse.fuse_convs`. Then a
    1x1 Conv is fused with the depthwise Conv before it, see `depthwise.fuse_depthwise`: not if `layout` is
    "nhwc" and some tensors become NHWC, nor if it is "auto" and two nodes in NHWC are estimated to be faster.
    Both apply to Convs that were swapped before, too. Before that, quantised convolutions become
    `convswap.QuantConv`, see `quantised.convert.quantise_convs`.

    With `layout`, tensors between Convs become NHWC, and the Convs `convswap.LayoutConv`, see
    `layout.choose.change_layouts`. LayoutConv nodes of the model stay as they are. With `fuse`, MatMuls of
    these tensors become LayoutConv nodes too, see `layout.matmuls.replace_matmuls`. Their
    LayerNormalizations and the Muls of squeeze-and-excitation become the library's, see
    `layout.library_operators.replace_operators`.

    Args:
        model: the path of an ONNX file, or a model in memory, which is not modified.
        algorithm: the name of an algorithm of the catalog for every swapped node, "auto" or "tuned". A
            QuantConv keeps "auto" if the algorithm computes no codes.
        precision: "tf32" or "ieee".
        only: a regular expression; only Convs and MatMuls whose name contains a match are swapped, or fused.
            Operators on codes are rewritten wherever a quantised Conv is swapped.
        fold: whether to fold the constant biases, scales and batch normalisations after swapped Convs.
        fuse: whether to fold them and also to fuse residuals, activations, poolings and depthwise Convs, for
            Convs that were swapped before, too.
        quantise: whether `fuse` also turns quantised convolutions into QuantConv.
        layout: "nchw" leaves tensors as they are; "nhwc" makes tensors NHWC where that suits the Convs around
            them; "auto" where it is estimated to gain on the card of this machine. `only` does not limit it.
            The default is "nhwc" if quantised convolutions were swapped, else "nchw".
        batch: for "auto", the extent of first axes that the model leaves open.

    Raises:
        ConvswapError: the model cannot be read, has no Conv that can be swapped, or an argument is not known.
    """
    if layout is not None and layout not in LAYOUTS:
        raise unknown_name("layout", layout, LAYOUTS)
    require_count("batch", batch)
    if algorithm != "auto":
        check_algorithm(algorithm)
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    pattern = name_pattern(only, "node names", "conv[12]$")

    def is_selected(name: str) -> bool:
        return pattern.search(name) is not None

    def reason_unselected(name: str) -> str | None:
        return None if is_selected(name) else f"its name does not match {pattern.pattern!r}"

    swapping = _swap_nodes(
        model,
        lambda _: NodeChoice(algorithm, precision),
        reason_unselected,
        fuses=fuse,
        quantises=is_selected if fuse and quantise else None,
    )
    layout = layout or (QUANTISED_LAYOUT if swapping.quantised else DEFAULT_LAYOUT)
    if not fuse:
        stages = dict.fromkeys(swapping.nodes if fold else (), Stage.FOLDED)
        is_quantised = any(is_dequantize(x.producer()) for node in swapping.nodes if (x := node.inputs[0]))
        folded, _ = fuse_convs(swapping.copy, stages, swapping.names, swapping.types)
        result = _with_layout(swapping.result(folded), layout, batch)
        return replace(result, notes=(*result.notes, NOT_FUSED)) if is_quantised else result

    def matmul_choice(name: str) -> NodeChoice | None:
        return NodeChoice(algorithm, precision) if is_selected(name) else None

    fused, not_fused = _fuse_all(swapping, is_selected)
    separate = swapping.result(fused, not_fused)
    if layout != DEFAULT_LAYOUT:
        separate = _with_layout(replace(separate, model=swapping.copy.clone()), layout, batch, matmul_choice)
    if layout == "nhwc" and separate.layout is not None and separate.layout.nodes:
        return separate
    fused, unpaired = fuse_depthwise(swapping.copy, swapping.names, swapping.types, is_selected, fused)
    paired = _with_layout(swapping.result(fused, (*not_fused, *unpaired)), layout, batch, matmul_choice)
    # A pair is computed in NCHW. It may be faster than two nodes in NHWC, or slower.
    return separate if _is_estimated_faster(separate.layout, paired.layout) else paired


def swap_to_run(
    model: ir.Model,
    *,
    algorithm: str = "auto",
    precision: str = DEFAULT_PRECISION,
    only: str | None = None,
    fuse: bool = False,
    layout: str | None = None,
    batch: int = 1,
) -> SwapResult:
    """Swap a model that is to be run, as `swap` does.

    A file that has swapped Convs, such as one of `optimize`, is taken as it is, unless an argument but the
    precision asks for more.
    """
    asks_for_more = algorithm != "auto" or only is not None or fuse or layout is not None
    if count_swapped(model) and not asks_for_more:
        return _swap_nodes(model, lambda _: NodeChoice(), lambda _: "the file leaves it", fuses=False).result(
            ()
        )
    return swap(
        model,
        algorithm=algorithm,
        precision=precision,
        only=only,
        fuse=fuse,
        layout=layout,
        batch=batch,
    )


def _with_layout(
    result: SwapResult,
    layout: str,
    batch: int,
    matmul_choice: Callable[[str], NodeChoice | None] = lambda _: None,
) -> SwapResult:
    """Return `result` with the tensors between its Convs in `layout`; its own model stays as it is.

    Where they become NHWC, MatMuls become 1x1 Convs: those for whose name `matmul_choice` is not None.
    """
    if layout == DEFAULT_LAYOUT:
        return result
    if layout == "auto" and not _native.cuda_devices():
        note = "layout auto rests on estimates for a card, and there is none: tensors stay in NCHW"
        return replace(result, notes=(*result.notes, note))
    model = result.model.clone()
    types = ValueTypes(model)
    costs = _costs(types, layout, batch)
    names = node_names(model)
    change = change_layouts(model, names, types, costs)
    if not change.nodes:
        return replace(result, layout=change)

    def attributes_of(name: str) -> list[ir.Attr] | None:
        choice = matmul_choice(name)
        return None if choice is None else _attributes(choice)

    types = ValueTypes(model)
    costs = _costs(types, layout, batch)
    # Nodes of the original keep their names, also if the layout changed the name of an output.
    names = node_names(model) | names
    replaced = replace_operators(model, names, types)
    remaining = {names[node] for graph in model.graphs() for node in graph}
    change = replace(
        change,
        carried=tuple(name for name in change.carried if name in remaining),
        layer_norms=replaced[LAYER_NORM_OP],
        muls=replaced[MUL_OP],
    )
    carried = set(change.carried)
    norms = [
        node for graph in model.graphs() for node in graph if is_layout_op(node) and names[node] in carried
    ]
    change = change.with_matmuls(*replace_matmuls(model, names, types, costs, attributes_of))
    change = change.with_batch_norms(
        fuse_convs(model, dict.fromkeys(norms, Stage.ACTIVATION), names, types)[0]
    )
    return replace(result, model=model, layout=change, nchw=result.model)


def _costs(types: ValueTypes, layout: str, batch: int) -> Costs:
    return EstimatedCosts(types, batch) if layout == "auto" else ConversionCosts(types)


def _is_estimated_faster(first: LayoutChange | None, second: LayoutChange | None) -> bool:
    return first is not None and second is not None and first.cost < second.cost


def swap_without_pairs(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    reasons: Mapping[str, str] | None = None,
    *,
    may_be_empty: bool = False,
) -> SwapResult:
    """Return the same as `swap` with `fuse`, but fuse no depthwise Conv with the 1x1 Conv after it.

    Quantised Convs become Convs of numbers. The Convs named in `reasons` are not swapped, for these reasons.

    Raises:
        ConvswapError: the model cannot be read, or has no Conv that can be swapped and `may_be_empty` is not
            set.
    """
    excluded = reasons or {}
    swapping = _swap_nodes(model, lambda _: NodeChoice(), excluded.get, fuses=True, may_be_empty=may_be_empty)
    return swapping.result(*_fuse_all(swapping, lambda name: name not in excluded))


def quantised_convs(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> tuple[Fused, ...]:
    """Return the records of the QuantConv nodes that `swap` with `fuse` makes.

    Raises:
        ConvswapError: the model cannot be read.
    """
    swapping = _swap_nodes(
        model,
        lambda _: NodeChoice(),
        lambda _: "it is not quantised",
        fuses=True,
        quantises=lambda _: True,
        may_be_empty=True,
    )
    return tuple(swapping.quantised)


def _fuse_all(
    swapping: _Swapping, is_selected: Callable[[str], bool]
) -> tuple[tuple[Fused, ...], tuple[NotFused, ...]]:
    """Fuse all selected `convswap.Conv` nodes with the nodes after them."""
    names = swapping.names
    convs = [node for node in _nodes(swapping.copy) if is_convswap_conv(node) and is_selected(names[node])]
    return fuse_convs(swapping.copy, dict.fromkeys(convs, Stage.POOL), names, swapping.types)


@dataclass(frozen=True)
class NodeChoice:
    """How to swap a Conv, and the last stage of the nodes after it to fuse.

    `tuned` has lines of a tuning table about the node's problems; they apply if the algorithm is "auto". A
    depthwise Conv and the 1x1 Conv after it become one node if `may_pair` is true for both.
    """

    algorithm: str = "auto"
    precision: str = DEFAULT_PRECISION
    max_stage: Stage = Stage.POOL
    tuned: tuple[str, ...] = ()
    may_pair: bool = False


def swap_selected(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    choices: Mapping[str, NodeChoice],
    reason_for_others: str,
    *,
    layout: str = DEFAULT_LAYOUT,
    batch: int = 1,
    quantise: bool = False,
) -> SwapResult:
    """Return a copy of `model` in which the Convs named in `choices` are swapped, each by its own choice.

    The names are those that `swap` gives to the nodes. `layout` and `batch` are arguments of `swap`, but the
    model in NCHW is not kept. With `quantise`, all quantised convolutions become QuantConv. All other Convs
    are recorded in `not_swapped` with the reason `reason_for_others`. `not_fused` is empty. Everything else
    is as in `swap`.

    Raises:
        ConvswapError: the model cannot be read, or none of these Convs can be swapped.
    """
    swapping = _swap_nodes(
        model,
        lambda name: choices.get(name, NodeChoice()),
        lambda name: None if name in choices else reason_for_others,
        fuses=True,
        quantises=(lambda _: True) if quantise else None,
    )
    stages = {node: choices[swapping.names[node]].max_stage for node in swapping.nodes}
    fused, _ = fuse_convs(swapping.copy, stages, swapping.names, swapping.types)
    pairing = {name for name, choice in choices.items() if choice.may_pair}
    if pairing:
        fused, _ = fuse_depthwise(swapping.copy, swapping.names, swapping.types, pairing.__contains__, fused)
    # A MatMul is not measured alone: it rounds to TF32 if a Conv may.
    rounds = not choices or any(choice.precision == DEFAULT_PRECISION for choice in choices.values())
    matmul_choice = NodeChoice(precision=DEFAULT_PRECISION if rounds else "ieee")
    changed = _with_layout(swapping.result(fused), layout, batch, lambda _: matmul_choice)
    return replace(changed, nchw=None)


@dataclass(frozen=True)
class _Swapping:
    """A copy of a model with Convs swapped and nothing fused; `types` has the types before the change."""

    copy: ir.Model
    names: Mapping[ir.Node, str]
    types: ValueTypes
    nodes: Sequence[ir.Node]  # the swapped nodes
    not_swapped: Sequence[NotSwapped]
    source: Path | None
    notes: tuple[str, ...] = ()
    quantised: Sequence[Fused] = ()
    not_quantised: Sequence[LeftQuantised] = ()
    order: Mapping[str, int] = field(default_factory=dict)  # of the names of nodes, before the change

    def result(self, fused: Sequence[Fused] = (), not_fused: Sequence[NotFused] = ()) -> SwapResult:
        quantised = (record.node for record in self.quantised if record.is_conv)
        swapped = [*(self.names[node] for node in self.nodes), *quantised]
        return SwapResult(
            self.copy,
            tuple(sorted(swapped, key=self.order.__getitem__)),
            tuple(self.not_swapped),
            self.source,
            (*self.quantised, *fused),
            tuple(not_fused),
            self.notes,
            not_quantised=tuple(self.not_quantised),
        )


def _swap_nodes(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    choice_of: Callable[[str], NodeChoice],
    reason_unselected: Callable[[str], str | None],
    *,
    fuses: bool,
    quantises: Callable[[str], bool] | None = None,
    may_be_empty: bool = False,
    expands: bool = True,
) -> _Swapping:
    """Return a copy of `model` with its Convs swapped. `fuses` tells whether the caller then fuses Convs.

    With `quantises`, the quantised convolutions for whose names it is true become QuantConv nodes, and
    ONNX Runtime's other operators on codes nodes on numbers, see `qlinear`. A model without a Conv that can
    be swapped is refused unless it `may_be_empty`.
    """
    copy, name, source = _load_copy(model)
    copy, not_inlined_reasons = inline_functions_with(copy, _is_conv)
    is_expanded = quantises is not None and expands and expand_qlinear_ops(copy)

    names = node_names(copy)
    types = ValueTypes(copy)
    order = {names[node]: index for index, node in enumerate(_nodes(copy))}
    quantised, not_quantised = (
        quantise_convs(copy, names, types, quantises) if quantises is not None else ((), ())
    )
    if is_expanded and not quantised:
        # Without a QuantConv these operators stay.
        return _swap_nodes(
            model, choice_of, reason_unselected,
            fuses=fuses, quantises=quantises, may_be_empty=may_be_empty, expands=False,
        )  # fmt: skip
    left_reasons = {
        record.node: f"it does not become a QuantConv: {record.reason}" for record in not_quantised
    }
    # All reasons are found before the first change, because types are inferred from the unchanged model.
    reasons = {
        node: _reason_not_swapped(node, names[node], reason_unselected, types)
        for node in _nodes(copy)
        if _is_convolution(node, copy)
    }
    to_swap = [node for node, reason in reasons.items() if reason is None]
    not_swapped = [
        NotSwapped(
            names[node], op_name(node), reason if _is_conv(node) else left_reasons.get(names[node], reason)
        )
        for node, reason in reasons.items()
        if reason is not None
    ]
    not_swapped += _not_swapped_in_functions(copy, not_inlined_reasons)
    has_ours = to_swap or any(is_convswap_op(node) or is_quant_op(node) for node in _nodes(copy))
    if not has_ours and not may_be_empty:
        raise _nothing_to_swap(name, not_swapped)
    float16 = any(types.element_type(_values(node)) == ir.DataType.FLOAT16 for node in to_swap)
    if to_swap or fuses:
        types.correct()
    for node in to_swap:
        _make_custom_op(node, names[node], choice_of(names[node]))
    _set_algorithms_of_codes(copy, {record.node: choice_of(record.node) for record in quantised})
    if to_swap:
        copy.opset_imports[DOMAIN] = DOMAIN_VERSION
    notes = (*((FLOAT16_ON_CPU,) if float16 else ()), *((QUANTISED_ON_CPU,) if quantised else ()))
    return _Swapping(copy, names, types, to_swap, not_swapped, source, notes, quantised, not_quantised, order)


def _load_copy(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
) -> tuple[ir.Model, str, Path | None]:
    """Return a copy of the model that may be changed, its name in messages, and the file it was read from."""
    if isinstance(model, onnx.ModelProto):
        # The copy shares tensors with the caller's message, and inlining functions may rename tensors.
        proto = copy_of(model) if model.functions else model
        return model_from_message(proto), "the model", None
    if isinstance(model, ir.Model):
        try:
            return model.clone(), "the model", None
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConvswapError(f"the model is not a valid ONNX model: {root_cause(error)}") from error
    if isinstance(model, (str, os.PathLike)):
        return load_model(model), f"'{model}'", Path(model)
    raise not_a_model(model, "a path, an onnx.ModelProto or an onnx_ir.Model")


def _is_conv(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "Conv")


def _is_convolution(node: ir.Node, model: ir.Model) -> bool:
    if is_convswap_op(node) or is_quant_op(node) or node.op_identifier() in model.functions:
        return False
    return is_named_convolution(node.op_type)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return ir.traversal.RecursiveGraphIterator(model.graph)


def _reason_not_swapped(
    node: ir.Node, label: str, reason_unselected: Callable[[str], str | None], types: ValueTypes
) -> str | None:
    """Return why `node` is not swapped; None if the library supports it and it is selected."""
    unsupported = _unsupported_op_reason(node)
    if unsupported is not None:
        return unsupported
    unselected = reason_unselected(label)
    if unselected is not None:
        return unselected
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
        supported = ", ".join(sorted(map(type_name, SUPPORTED_ELEMENT_TYPES)))
        return f"its element type is {type_name(element_type)}; the library computes {supported}"
    rank = types.rank([values[1], values[0], node.outputs[0]])
    if rank is not None and rank not in SUPPORTED_RANKS:
        return f"its data have rank {rank}; the library computes ranks 3, 4 and 5 (1-D, 2-D and 3-D)"
    if _exceeds_image(values[0], node.outputs[0], types):
        # A branch of If that never runs may have it. The library's op refuses it when the session is made.
        return "its filter is larger than its padded image"
    return None


def _exceeds_image(image: ir.Value, result: ir.Value, types: ValueTypes) -> bool:
    """Return whether a Conv of an image with elements has no position for its filter."""
    has_elements = all(extent is None or extent > 0 for extent in types.axes(image)[2:])
    return has_elements and any(extent is not None and extent <= 0 for extent in types.axes(result)[2:])


def _values(node: ir.Node) -> list[ir.Value]:
    return [value for value in (*node.inputs, *node.outputs) if value is not None]


def _unsupported_op_reason(node: ir.Node) -> str | None:
    if _is_conv(node):
        return None
    reason = unsupported_reason(node.domain, node.op_type)
    return f"{op_name(node)} {reason or 'is not Conv of the ONNX domain, the only op that is swapped'}"


def _make_custom_op(node: ir.Node, name: str, choice: NodeChoice) -> None:
    inputs = len(node.inputs)
    while node.inputs[inputs - 1] is None:
        inputs -= 1
    node.resize_inputs(inputs)
    node.name = name
    node.domain = DOMAIN
    node.version = None
    for attribute in _attributes(choice):
        node.attributes[attribute.name] = attribute


def _attributes(choice: NodeChoice) -> list[ir.Attr]:
    """Return the attributes of a convswap node for `choice`."""
    attributes = []
    if choice.algorithm != "auto":
        attributes.append(ir.AttrString("algorithm", choice.algorithm))
    if choice.precision != DEFAULT_PRECISION:
        attributes.append(ir.AttrString("precision", choice.precision))
    if choice.tuned:
        attributes.append(ir.AttrString("tuned", "\n".join(choice.tuned)))
    return attributes


def _set_algorithms_of_codes(model: ir.Model, choices: Mapping[str, NodeChoice]) -> None:
    """Set the algorithms of new QuantConv nodes, by name; an algorithm for numbers alone leaves "auto"."""
    for node in _nodes(model):
        choice = choices.get(node.name or "") if is_quant_op(node) else None
        algorithm = "auto" if choice is None else choice.algorithm
        if algorithm != "auto" and takes_codes(algorithm):
            node.attributes["algorithm"] = ir.AttrString("algorithm", algorithm)


def _not_swapped_in_functions(model: ir.Model, reasons: Reasons) -> Iterator[NotSwapped]:
    for identifier, function in model.functions.items():
        for node in function.all_nodes():
            if _is_convolution(node, model):
                label = node.name or name_from_output(node)
                reason = (
                    _unsupported_op_reason(node)
                    or f"it is inside function {function.name!r}: {reasons[identifier]}"
                )
                yield NotSwapped(label, op_name(node), reason)


def _nothing_to_swap(name: str, not_swapped: list[NotSwapped]) -> ConvswapError:
    if not not_swapped:
        return ConvswapError(
            f"{name} has no Conv node, so there is nothing to swap; expected a model with a Conv"
        )
    first = not_swapped[0]
    others = f", and {len(not_swapped) - 1} more" if len(not_swapped) > 1 else ""
    return ConvswapError(
        f"{name} has no Conv that can be swapped: {first.op} node {first.node!r} is left "
        f"because {first.reason}{others}"
    )
