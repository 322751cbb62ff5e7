"""Find the tensors of a graph that can be NHWC, and choose those that gain.

Operators between Convs tie the layouts of their tensors together, see `operators`. Values that are tied form
a set with one layout; a Conv reads and writes each of its tensors in its own layout. What else reads or
writes a value of a set gets a Transpose, so a set is NHWC only if that gains more than its Transposes cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from convswap.graph.domain import is_convswap_op, is_layout_op
from convswap.graph.epilogue import NotFusable, read_ints
from convswap.graph.layout.axes import RANKS, to_nchw, to_nhwc
from convswap.graph.layout.costs import Costs, NodeLayouts
from convswap.graph.layout.operators import Carried, NotCarried, Reader, carried

# The inputs of a convswap node that have a layout, and the gain that a set of NHWC tensors has to reach.
_DATA, _RESIDUAL = 0, 3
_MIN_GAIN = 0.03
# Smaller gains are rounding of the sums.
_ROUNDING = 1e-9


@dataclass(eq=False)
class TiedValues:
    """Values that have the same layout, and what reads and writes them.

    `convs` are the convswap nodes with a tensor among them. `blockers` are the nodes that need the values in
    NCHW, with the reason; `transposed` are the values that need a Transpose for them, or for being an input
    or output of the graph. `gained` are the values whose Transposes in the model go if they are NHWC.
    """

    values: list[ir.Value] = field(default_factory=list)
    convs: list[ir.Node] = field(default_factory=list)
    blockers: dict[ir.Node, str] = field(default_factory=dict)
    transposed: list[ir.Value] = field(default_factory=list)
    gained: list[ir.Value] = field(default_factory=list)
    is_nhwc: bool = False

    def border(self, costs: Costs, is_nhwc: bool) -> float:
        """Return the cost of the Transposes at the border in one of the layouts."""
        return sum(map(costs.transpose, self.transposed if is_nhwc else self.gained))


class Regions:
    """The tied values of one graph that Convs read or write.

    `carried` are the nodes that compute in either layout, `transposes` those from one layout to the other,
    and `convs` the convswap nodes whose tensors can have either layout.
    """

    def __init__(self, graph: ir.Graph, reader: Reader) -> None:
        self.carried: dict[ir.Node, Carried] = {}
        self.transposes: list[ir.Node] = []
        self._graph = graph
        self.reader = reader
        self._sets: dict[ir.Value, TiedValues] = {}
        self._ranks: dict[ir.Value, int] = {}
        self.convs: list[ir.Node] = []
        reasons: dict[ir.Node, str] = {}
        for node in graph:
            if is_convswap_op(node) and not is_layout_op(node):
                if self._is_valid(node):
                    self.convs.append(node)
                    for value in tensors_of(node):
                        self._tie([value])
                continue
            if is_layout_change(node):
                self.transposes.append(node)
                continue
            try:
                rule = carried(node, reader)
                if any(value.graph is not graph for value in rule.tied):
                    raise NotCarried("it reads a value of another graph")
            except (NotCarried, NotFusable) as reason:
                reasons[node] = str(reason)
                continue
            self.carried[node] = rule
            self._tie(rule.tied)
        self._valid = set(self.convs)
        self._find_borders(reasons)

    def _is_valid(self, node: ir.Node) -> bool:
        ranks = {self.reader.rank(value) for value in tensors_of(node)}
        weights = node.inputs[1] if len(node.inputs) > 1 else None
        rank = None if weights is None else self.reader.rank(weights)
        return len(node.outputs) == 1 and node.inputs[0] is not None and ranks == {rank} and rank in RANKS

    def is_nhwc(self, value: ir.Value | None) -> bool:
        """Return whether `value` is NHWC."""
        return value is not None and value in self._sets and self._sets[value].is_nhwc

    def rank(self, value: ir.Value) -> int:
        """Return the rank of a value of a set."""
        return self._ranks[value]

    def layouts(self, node: ir.Node) -> NodeLayouts:
        """Return the layouts of a convswap node's tensors."""
        residual = node.inputs[_RESIDUAL] if len(node.inputs) > _RESIDUAL else None
        return NodeLayouts(
            self.is_nhwc(node.inputs[0]), self.is_nhwc(residual), self.is_nhwc(node.outputs[0])
        )

    @property
    def sets(self) -> list[TiedValues]:
        """The sets of tied values that a convswap node reads or writes."""
        return [tied for tied in dict.fromkeys(self._sets.values()) if tied.convs]

    def choose(self, costs: Costs) -> None:
        """Set the layout of each set to the cheaper one, given those of the others.

        The search starts with all sets in NHWC, and changes one set at a time while that gains. The result
        stands if it gains 3 % over all sets in NCHW.
        """
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
        # In doubt a set stays in NCHW.
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
        first, *others = dict.fromkeys(map(self._set_of, values))
        for other in others:
            first.values += other.values
            for value in other.values:
                self._sets[value] = first

    def _find_borders(self, reasons: Mapping[ir.Node, str]) -> None:
        for value, tied in self._sets.items():
            writer = value.producer()
            needs_transpose = value.is_graph_output()
            if writer is not None and changes_to_nchw(writer) and writer.graph is self._graph:
                tied.gained.append(value)
            elif not self.keeps_layout(writer, value):
                needs_transpose = True
                if writer is not None and writer in reasons:
                    tied.blockers[writer] = reasons[writer]
            for user, _ in value.uses():
                if changes_to_nhwc(user) and user.graph is self._graph:
                    tied.gained.append(user.outputs[0])
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
        return node in self._valid and value in tensors_of(node)


def tensors_of(node: ir.Node) -> list[ir.Value]:
    """Return the tensors of a convswap node that have a layout: data, residual and result."""
    inputs = [node.inputs[index] for index in (_DATA, _RESIDUAL) if index < len(node.inputs)]
    return [value for value in (*inputs, *node.outputs) if value is not None]


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
