"""Make tensors between Convs NHWC where that gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import onnx_ir as ir

from convswap.graph.constants import ConstantWriter
from convswap.graph.domain import op_name
from convswap.graph.fusion.fuse import Fused, fusion_remarks
from convswap.graph.layout.costs import Costs
from convswap.graph.layout.operators import Reader
from convswap.graph.layout.regions import Regions
from convswap.graph.layout.write import LayoutWriter
from convswap.graph.value_types import ValueTypes

# Which tensors to make NHWC: none; those for which that suits the Convs around them (`ConversionCosts`); or
# those for which that is estimated to gain on the card of this machine (`EstimatedCosts`).
LAYOUTS = ("nchw", "nhwc", "auto")


@dataclass(frozen=True)
class Blocker:
    """A node next to Convs that needs its tensors in NCHW, and the reason, which calls the node "it"."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class LayoutChange:
    """The tensors that became NHWC.

    Attributes:
        nodes: for each Conv with a tensor in NHWC, by name, the tensors: "input", "residual", "output".
        carried: names of the other nodes that compute in NHWC.
        added: how many Transposes were added.
        removed: how many Transposes of the model were not needed any more.
        not_carried: the nodes next to Convs that need NCHW.
        cost: the cost of all Convs and Transposes, in the unit of the costs that the choice rests on, less
            the gain of the `matmuls`.
        matmuls: the MatMuls that became 1x1 Convs with NHWC tensors, with the nodes that each includes.
        batch_norms: the BatchNormalizations, now depthwise Convs, that include nodes after them.
        layer_norms: names of the LayerNormalizations that became the library's.
        muls: names of the Muls that became the library's.
    """

    nodes: Mapping[str, tuple[str, ...]]
    carried: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0
    not_carried: tuple[Blocker, ...] = ()
    cost: float = 0.0
    matmuls: tuple[Fused, ...] = ()
    batch_norms: tuple[Fused, ...] = ()
    layer_norms: tuple[str, ...] = ()
    muls: tuple[str, ...] = ()

    def with_matmuls(self, matmuls: tuple[Fused, ...], gain: float) -> LayoutChange:
        """Return the change in which `matmuls` became 1x1 Convs afterwards, which gained `gain`."""
        return replace(self._without(matmuls), cost=self.cost - gain, matmuls=matmuls)

    def with_batch_norms(self, batch_norms: tuple[Fused, ...]) -> LayoutChange:
        """Return the change in which `batch_norms`, depthwise Convs, took in nodes after them."""
        return replace(self._without(batch_norms), batch_norms=batch_norms)

    def _without(self, fused: tuple[Fused, ...]) -> LayoutChange:
        names = {name for record in fused for _, name in record.fused_nodes}
        return replace(self, carried=tuple(name for name in self.carried if name not in names))

    def to_json(self) -> dict[str, Any]:
        """Return the record for JSON; the keys are in `SwapResult.report`."""
        return {
            "nhwc": {name: list(tensors) for name, tensors in self.nodes.items()},
            "carried": list(self.carried),
            "transposes_added": self.added,
            "transposes_removed": self.removed,
            "not_carried": [asdict(record) for record in self.not_carried],
            **({"matmuls": [record.to_json() for record in self.matmuls]} if self.matmuls else {}),
            **(
                {"batch_norms": [record.to_json() for record in self.batch_norms]} if self.batch_norms else {}
            ),
            **({"layer_norms": list(self.layer_norms)} if self.layer_norms else {}),
            **({"muls": list(self.muls)} if self.muls else {}),
        }

    def lines(self) -> list[str]:
        """Return sentences for a user, without a full stop."""
        if not self.nodes:
            first = "no tensor between Convs became NHWC"
        else:
            first = (
                f"Conv with NHWC tensors: {len(self.nodes)}; other nodes that compute in NHWC: "
                f"{len(self.carried)}; Transposes: {self.added} added, {self.removed} removed"
            )
        if self.matmuls:
            first += f"; MatMul nodes that became 1x1 Convs: {len(self.matmuls)}"
        if self.batch_norms:
            first += f"; BatchNormalization nodes that include an activation: {len(self.batch_norms)}"
        if self.layer_norms:
            first += f"; LayerNormalization nodes of the library: {len(self.layer_norms)}"
        if self.muls:
            first += f"; Mul nodes of the library: {len(self.muls)}"
        kinds: dict[tuple[str, str], list[str]] = {}
        for record in self.not_carried:
            kinds.setdefault((record.op, record.reason), []).append(record.node)
        return [first, *fusion_remarks(self.matmuls, ()), *(
            f"{op} {nodes[0]} stays in NCHW: {reason}"
            + (f"; and {len(nodes) - 1} more of the same" if len(nodes) > 1 else "")
            for (op, reason), nodes in kinds.items()
        )]  # fmt: skip


def change_layouts(
    model: ir.Model, names: Mapping[ir.Node, str], types: ValueTypes, costs: Costs
) -> LayoutChange:
    """Make tensors of `model` NHWC, in place, where that costs less.

    A convswap node with a tensor in NHWC becomes a `convswap.LayoutConv`. Operators between Convs compute in
    NHWC too ("carried"), or get a Transpose before or after them. Inputs and outputs of the graphs stay as
    they are. A Transpose of the model that would change nothing any more is removed.

    `names` has a name for every node of the original model; `types` knows its values.
    """
    reader, constants = Reader(model, types), ConstantWriter(model)

    def name_of(node: ir.Node) -> str:
        return node.name or names.get(node, "")

    nodes: dict[str, tuple[str, ...]] = {}
    carried: list[str] = []
    blockers: dict[ir.Node, str] = {}
    added = removed = 0
    cost = 0.0
    for graph in list(model.graphs()):
        regions = Regions(graph, reader)
        if not regions.convs:
            continue
        regions.choose(costs)
        cost += regions.cost(costs)
        for conv in regions.convs:
            chosen = regions.layouts(conv)._asdict()
            if any(chosen.values()):
                nodes[name_of(conv)] = tuple(name for name, is_nhwc in chosen.items() if is_nhwc)
        carried += [name_of(node) for node in regions.carried_in_nhwc()]
        for tied in regions.sets:
            blockers |= tied.blockers
        writer = LayoutWriter(graph, regions, constants)
        writer.write()
        added, removed = added + writer.added, removed + writer.removed
    not_carried = tuple(Blocker(name_of(node), op_name(node), reason) for node, reason in blockers.items())
    return LayoutChange(nodes, tuple(carried), added, removed, not_carried, cost)
