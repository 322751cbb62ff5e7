"""Find the tensors of a graph that can be NHWC, and choose those that gain.

Operators between Convs tie the layouts of their tensors together, see `operators`. Values that are tied form
a set with one layout; a Conv reads and writes each of its tensors in any layout. Every other reader or writer
of a value in NHWC gets a Transpose, so a set is NHWC only if that gains more than its Transposes cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from convswap.graph.domain import is_convswap_op, is_layout_op, is_quant_op
from convswap.graph.epilogue import NotFusable, read_ints
from convswap.graph.layout.axes import RANKS, to_nchw, to_nhwc
from convswap.graph.layout.costs import LAYOUT_ATTRIBUTES, Costs, NodeLayouts, residual_of
from convswap.graph.layout.operators import (
    Carried,
    NotCarried,
    Reader,
    Writer,
    carried,
    names_axes,
    with_every_axis,
)

# The inputs of a convswap node that are weights.
_WEIGHTS, _DEPTHWISE_WEIGHTS = 1, 4
# The gain that the tensors in NHWC of a graph have to reach together, as a share of the cost without them.
_MIN_GAIN = 0.03
# Smaller gains are rounding of the sums.
_ROUNDING = 1e-9


@dataclass(eq=False)
class TiedValues:
    """Values that have the same layout, and what reads and writes them.

    `convs` are the convswap nodes with a tensor among them. `blockers` are the other nodes that need some of
    the values in NCHW, with the reason. If the set is NHWC, `transposed` are the values that need a
    Transpose, for a blocker or because they are an input or output of the graph, and `saved` are the values
    next to a Transpose of the model that disappears.
    """

    values: list[ir.Value] = field(default_factory=list)
    convs: list[ir.Node] = field(default_factory=list)
    blockers: dict[ir.Node, str] = field(default_factory=dict)
    transposed: list[ir.Value] = field(default_factory=list)
    saved: list[ir.Value] = field(default_factory=list)
    is_nhwc: bool = False

    def border(self, costs: Costs, is_nhwc: bool) -> float:
        """Return the cost of the Transposes around the set that one of the layouts needs."""
        return sum(map(costs.transpose, self.transposed if is_nhwc else self.saved))


class Regions:
    """The tied values of one graph that Convs read or write.

    `carried` are the nodes that compute in either layout, `transposes` those from one layout to the other,
    and `convs` the convswap nodes whose tensors can have either layout. `with_axes` rewrites the nodes that
    cannot stay as they are next to a new Transpose, see `operators.names_axes`. If one of them cannot be
    rewritten, every tensor stays in NCHW.
    """

    def __init__(self, graph: ir.Graph, reader: Reader) -> None:
        self.carried: dict[ir.Node, Carried] = {}
        self.transposes: list[ir.Node] = []
        self._graph = graph
        self.reader = reader
        self._sets: dict[ir.Value, TiedValues] = {}
        self._ranks: dict[ir.Value, int] = {}
        self.convs: dict[ir.Node, None] = {}
        self.with_axes: dict[ir.Node, Callable[[Writer], None]] = {}
        self._may_change = True
        reasons: dict[ir.Node, str] = {}
        for node in graph:
            if is_convswap_op(node) or is_quant_op(node):
                if self._is_valid(node):
                    self.convs[node] = None
                    for value in tensors_of(node):
                        self._tie([value])
                continue
            if is_layout_change(node):
                self.transposes.append(node)
                continue
            self._note_axes(node)
            try:
                rule = carried(node, reader)
                if any(value.graph is not graph for value in rule.tied):
                    raise NotCarried("it reads a value of another graph")
            except (NotCarried, NotFusable) as reason:
                reasons[node] = str(reason)
                continue
            self.carried[node] = rule
        self._leave_numbers_at_borders(reasons)
        for rule in self.carried.values():
            self._tie(rule.tied)
        self._find_borders(reasons)
        # The sets of tied values that a convswap node reads or writes.
        self.sets = [tied for tied in dict.fromkeys(self._sets.values()) if tied.convs]

    def _leave_numbers_at_borders(self, reasons: dict[ir.Node, str]) -> None:
        """Leave DequantizeLinear nodes in NCHW whose result all readers need in NCHW.

        A Transpose of their codes moves a quarter of the bytes. Around one of numbers ONNX Runtime's
        optimiser would put QuantizeLinear and DequantizeLinear.
        """
        for node in [node for node in self.carried if node.op_type == "DequantizeLinear"]:
            (result,) = node.outputs
            users = [user for user, _ in result.uses()]
            if any(self.keeps_layout(user, result) or changes_to_nhwc(user) for user in users):
                continue
            del self.carried[node]
            why = [f"{user.op_type} {user.name or ''}: {reasons[user]}" for user in users if user in reasons]
            reasons[node] = "; ".join(why) or "its result is needed in NCHW"

    def _note_axes(self, node: ir.Node) -> None:
        if names_axes(node):
            try:
                self.with_axes[node] = with_every_axis(node, self.reader)
            except NotCarried:
                self._may_change = False

    def _is_valid(self, node: ir.Node) -> bool:
        ranks = {self.reader.rank(value) for value in tensors_of(node)}
        weights = node.inputs[1] if len(node.inputs) > 1 else None
        rank = None if weights is None else self.reader.rank(weights)
        is_whole = len(node.outputs) == 1 and node.inputs[0] is not None
        weights_read = [node.inputs[i] for i in (_WEIGHTS, _DEPTHWISE_WEIGHTS) if i < len(node.inputs)]
        return (
            not _has_layouts(node)
            and is_whole
            and ranks == {rank}
            and rank in RANKS
            # Weights have no layout, also if they are the data.
            and not any(value in tensors_of(node) for value in weights_read)
        )

    def is_nhwc(self, value: ir.Value | None) -> bool:
        """Return whether `value` is NHWC."""
        return value is not None and value in self._sets and self._sets[value].is_nhwc

    def rank(self, value: ir.Value) -> int:
        """Return the rank of a value of a set."""
        return self._ranks[value]

    def layouts(self, node: ir.Node) -> NodeLayouts:
        """Return the layouts of a convswap node's tensors."""
        tensors = (node.inputs[0], residual_of(node), node.outputs[0])
        return NodeLayouts(*map(self.is_nhwc, tensors))

    def carried_in_nhwc(self) -> list[ir.Node]:
        """Return the carried nodes that compute in NHWC."""
        return [node for node, rule in self.carried.items() if any(map(self.is_nhwc, rule.tied))]

    def choose(self, costs: Costs) -> None:
        """Set the layout of each set to the cheaper one, given those of the others.

        The search starts with all sets in NHWC, and changes one set at a time while that gains. The result
        stands if it gains 3 % over all sets in NCHW.
        """
        if not self._may_change:
            return
        nchw = self.cost(costs)
        for tied in self.sets:
            tied.is_nhwc = True
        while any([self._flip_if_cheaper(tied, costs) for tied in self.sets]):
            pass
        if not self.cost(costs) <= (1 - _MIN_GAIN) * nchw:
            for tied in self.sets:
                tied.is_nhwc = False

    def _flip_if_cheaper(self, tied: TiedValues, costs: Costs) -> bool:
        before = self._local_cost(tied, costs)
        tied.is_nhwc = not tied.is_nhwc
        after = self._local_cost(tied, costs)
        # On a tie a set is NCHW.
        if after < before * (1 - _ROUNDING) or (after <= before and not tied.is_nhwc):
            return True
        tied.is_nhwc = not tied.is_nhwc
        return False

    def _local_cost(self, tied: TiedValues, costs: Costs) -> float:
        return self._conv_cost(tied.convs, costs) + tied.border(costs, tied.is_nhwc)

    def cost(self, costs: Costs) -> float:
        """Return the cost of all convswap nodes and of the Transposes around their tensors."""
        borders = sum(tied.border(costs, tied.is_nhwc) for tied in self.sets)
        return self._conv_cost(self.convs, costs) + borders

    def _conv_cost(self, convs: Iterable[ir.Node], costs: Costs) -> float:
        return sum(costs.conv(node, self.layouts(node)) for node in convs)

    def _set_of(self, value: ir.Value) -> TiedValues:
        if value not in self._sets:
            self._sets[value] = TiedValues([value])
        return self._sets[value]

    def _tie(self, values: Sequence[ir.Value]) -> None:
        # Only a Reshape ties values of different ranks, and it knows both.
        rank = self.reader.rank(*values)
        for value in values:
            self._ranks.setdefault(value, self.reader.rank(value) or rank or 0)
        # The largest set takes in the others, so that a long chain is not copied again and again.
        sets = dict.fromkeys(map(self._set_of, values))
        first, *others = sorted(sets, key=lambda tied: len(tied.values), reverse=True)
        for other in others:
            first.values += other.values
            for value in other.values:
                self._sets[value] = first

    def _find_borders(self, reasons: Mapping[ir.Node, str]) -> None:
        for value, tied in self._sets.items():
            writer = value.producer()
            needs_transpose = value.is_graph_output()
            if writer is not None and changes_to_nchw(writer) and writer.graph is self._graph:
                tied.saved.append(value)
            elif not self.keeps_layout(writer, value):
                needs_transpose = True
                if writer is not None and writer in reasons:
                    tied.blockers[writer] = reasons[writer]
            for user, _ in value.uses():
                if changes_to_nhwc(user) and user.graph is self._graph:
                    tied.saved.append(user.outputs[0])
                elif not self.keeps_layout(user, value):
                    needs_transpose = True
                    if user in reasons:
                        tied.blockers[user] = reasons[user]
            if needs_transpose:
                tied.transposed.append(value)
        for conv in self.convs:
            for tied in dict.fromkeys(self._sets[value] for value in tensors_of(conv)):
                tied.convs.append(conv)

    def keeps_layout(self, node: ir.Node | None, value: ir.Value) -> bool:
        """Return whether `node` reads or writes `value` in the layout of its set, whichever that is."""
        if node is None or node.graph is not self._graph:
            return False
        if node in self.carried:
            return value in self.carried[node].tied
        return node in self.convs and value in tensors_of(node)


def tensors_of(node: ir.Node) -> list[ir.Value]:
    """Return the tensors of a convswap node that have a layout: data, residual and result."""
    return [value for value in (*node.inputs[:1], residual_of(node), *node.outputs) if value is not None]


def _has_layouts(node: ir.Node) -> bool:
    """Return whether an earlier swap chose the layouts of a convswap node."""
    return is_layout_op(node) or any(name in node.attributes for name in LAYOUT_ATTRIBUTES)


def is_layout_change(node: ir.Node) -> bool:
    """Return whether `node` is a Transpose from NCHW to NHWC or back."""
    return changes_to_nhwc(node) or changes_to_nchw(node)


def changes_to_nhwc(node: ir.Node) -> bool:
    """Return whether `node` is the Transpose from NCHW to NHWC, which for 1-D data is also the one back."""
    perm = _perm(node)
    return len(perm) in RANKS and perm == to_nhwc(len(perm))


def changes_to_nchw(node: ir.Node) -> bool:
    """Return whether `node` is the Transpose from NHWC to NCHW, which for 1-D data is also the one back."""
    perm = _perm(node)
    return len(perm) in RANKS and perm == to_nchw(len(perm))


def _perm(node: ir.Node) -> tuple[int, ...]:
    if (
        (node.domain, node.op_type) != ("", "Transpose")
        or len(node.outputs) != 1
        or node.inputs[:1] == (None,)
    ):
        return ()
    try:
        return tuple(read_ints(node, "perm", ()))
    except NotFusable:
        return ()
