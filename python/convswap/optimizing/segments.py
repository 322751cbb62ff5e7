"""The segments of a model that are measured: a Conv with the nodes that can be fused with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from convswap.graph.branches import Path, branch_model, branch_paths
from convswap.graph.domain import is_convswap_op
from convswap.graph.external_weights import SplitModel, Weights, is_external_weight, split_model_in_place
from convswap.graph.fusion.fuse import Stage
from convswap.graph.plain_model import CONV_ATTRIBUTES
from convswap.graph.replaced import constants_of
from convswap.graph.serialisation import copy_of
from convswap.graph.swap import NodeChoice, SwapResult, swap_selected
from convswap.runtime.layers import ConvLayer, conv_layers
from convswap.runtime.memory import freed_at_once

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Segment:
    """A Conv and the nodes that can be fused with it; in `layer` all of them are fused.

    Its large weights are those of the original model; folded weights are not among them. `depthwise` is the
    name of the depthwise Conv in front, where that is fused too.
    """

    layer: ConvLayer
    path: Path = ()  # to the branch that it is in
    depthwise: str = ""

    @property
    def name(self) -> str:
        """The Conv's name."""
        return self.layer.name

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages up to which it can be fused, the plain swap first."""
        present = {
            Stage.RESIDUAL: len(self.layer.node.input) > 3,
            Stage.ACTIVATION: self._names("activation"),
            Stage.POOL: self._names("pool"),
        }
        return (Stage.FOLDED, *(stage for stage, there in present.items() if there))

    @property
    def weights_digest(self) -> str:
        """A digest of the constants."""
        digest = hashlib.sha256()
        before = self.layer.replaced or self.layer
        for name, tensor in sorted(before.constants.items()):
            digest.update(tensor.SerializeToString(deterministic=True))
            if is_external_weight(tensor):
                digest.update(before.weights[name].data)
        return digest.hexdigest()[:16]

    def _names(self, attribute: str) -> bool:
        return self.layer.setting(attribute, "None") != "None"

    def key(self, shapes: Shapes) -> str:
        """Return the problem and the default side's ops: segments with the same key take the same time."""
        nodes = self.layer.replaced.nodes if self.layer.replaced is not None else (self.layer.node,)
        return f"{self.layer.problem(shapes).text} : {' '.join(node.op_type for node in nodes)}"

    def default_model(self, shapes: Shapes) -> SplitModel:
        """Return the original segment as a model with inputs of `shapes`."""
        model = self.layer.model(shapes, ours=False)
        names = (self.depthwise, self.name) if self.depthwise else (self.name,)
        convs = [node for node in model.message.graph.node if node.op_type == "Conv"]
        for node, name in zip(convs, names, strict=True):
            node.name = name
        return model

    def our_model(self, shapes: Shapes, choice: NodeChoice) -> SplitModel:
        """Return the segment as a model with its Conv swapped, and fused up to a stage."""
        return swapped_model(self.default_model(shapes).to_model(), {self.name: choice}, "it is another")[0]

    def our_layer(self, shapes: Shapes, choice: NodeChoice) -> ConvLayer:
        """Return the Conv of `our_model`, with the nodes that were fused with it.

        It is read from there because fusion also adds a bias.
        """
        (layer,) = conv_layers(self.our_model(shapes, choice))
        return layer

    def conv_alone(self, precision: str) -> ConvLayer:
        """Return the Conv with the nodes that are folded into its weights, and without an epilogue."""
        node = copy_of(self.layer.node)
        node.op_type = "Conv"
        del node.input[3:]
        while node.input and not node.input[-1]:
            node.input.pop()
        kept = [attribute for attribute in node.attribute if attribute.name in CONV_ATTRIBUTES]
        del node.attribute[:]
        node.attribute.extend(kept)
        constants = {name: tensor for name, tensor in self.layer.constants.items() if name in node.input}
        alone = replace(self.layer, node=node, constants=constants, replaced=None)
        return alone.with_setting("precision", precision)

    def weights_alone(self, shapes: Shapes) -> Weights:
        """Return the large weights of `conv_alone`, by their names, for inputs of `shapes`."""
        weights, names = self.layer.weights, [str(name) for name in self.layer.node.input[1:3]]
        folded = [
            name for name in names if name not in weights and is_external_weight(self.layer.constants[name])
        ]
        if not folded:
            return weights
        our = self.our_model(shapes, NodeChoice(max_stage=Stage.FOLDED))
        (layer,) = conv_layers(our)
        same = dict(zip(names, layer.node.input[1:3], strict=True))
        return {**weights, **{name: our.weights[same[name]] for name in folded}}


def segments_of(swapped: SplitModel, unfused: SplitModel | None) -> tuple[Segment, ...]:
    """Return the segments that can be measured alone, of the main graph and of the branches of Ifs.

    `swapped` and `unfused` are as for `conv_layers`. In a branch the weights must be constants.
    """
    found = [Segment(layer) for layer in conv_layers(swapped, unfused)]
    for path in branch_paths(swapped.message.graph):
        branch = _with_constant_weights(branch_model(swapped.message, path))
        if not any(is_convswap_op(node) for node in branch.graph.node):
            continue
        before = unfused and unfused._replace(message=branch_model(unfused.message, path))
        found += [Segment(layer, path) for layer in conv_layers(swapped._replace(message=branch), before)]
    return tuple(found)


def pairs_of(
    swapped: SplitModel, unfused: SplitModel | None, fronts: Mapping[str, str]
) -> tuple[Segment, ...]:
    """Return the segments of the main graph in which a depthwise Conv is fused with the 1x1 Conv behind it.

    `swapped` and `unfused` are as for `conv_layers`; `fronts` maps the name of the 1x1 Conv to that of the
    depthwise one.
    """
    return tuple(
        Segment(layer, depthwise=fronts[layer.name])
        for layer in conv_layers(swapped, unfused)
        if layer.convolutions == 2 and layer.name in fronts
    )


def _with_constant_weights(branch: onnx.ModelProto) -> onnx.ModelProto:
    """Remove our nodes with computed weights from `branch`: they cannot be measured alone."""
    constants = constants_of(branch.graph)
    kept = [node for node in branch.graph.node if not is_convswap_op(node) or node.input[1] in constants]
    del branch.graph.node[:]
    branch.graph.node.extend(kept)
    return branch


def swapped_model(
    model: ir.Model, choices: Mapping[str, NodeChoice], why_others: str
) -> tuple[SplitModel, SwapResult]:
    """Return `model` swapped by `swap_selected`, and the result of the swap, whose model has no weights."""
    with freed_at_once():
        result = swap_selected(model, choices, why_others)
        return split_model_in_place(result.model), result


def side_by_side(model: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """Return a model that computes `model` `count` times from the same inputs.

    The time of one copy is then the cost of `model` within a longer model, the host's time for its nodes
    included.
    """
    copy = copy_of(model)
    computed = {name for node in model.graph.node for name in node.output if name}
    for number in range(1, count):
        for node in model.graph.node:
            own = copy.graph.node.add()
            own.CopyFrom(node)
            own.name = f"{node.name}/{number}"
            for names in (own.input, own.output):
                for index, name in enumerate(names):
                    if name in computed:
                        names[index] = f"{name}/{number}"
        for output in model.graph.output:
            own_output = copy.graph.output.add()
            own_output.CopyFrom(output)
            own_output.name = f"{output.name}/{number}"
    return copy
