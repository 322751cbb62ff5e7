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
from convswap.graph.swap import DEFAULT_LAYOUT, NodeChoice, SwapResult, swap_selected
from convswap.runtime.layers import ConvLayer, conv_layers
from convswap.runtime.memory import released_at_once

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Segment:
    """A Conv and the nodes that can be fused with it, which are measured together.

    `layer` is the fused node that replaces them. `layer.weights` holds only large weights of the original
    model; if folding made new weights, call `bare_conv_weights`. `depthwise` names the depthwise Conv in
    front if it is fused too.
    """

    layer: ConvLayer
    path: Path = ()  # to the branch that contains the Conv
    depthwise: str = ""

    @property
    def name(self) -> str:
        """The Conv's name."""
        return self.layer.name

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages up to which the Conv can be fused, the plain swap first."""
        present = {
            Stage.RESIDUAL: len(self.layer.node.input) > 3,
            Stage.ACTIVATION: self._is_set("activation"),
            Stage.POOL: self._is_set("pool"),
        }
        return (Stage.FOLDED, *(stage for stage, is_present in present.items() if is_present))

    @property
    def weights_digest(self) -> str:
        """A digest of the constants."""
        digest = hashlib.sha256()
        original = self.layer.replaced or self.layer
        for name, tensor in sorted(original.constants.items()):
            digest.update(tensor.SerializeToString(deterministic=True))
            if is_external_weight(tensor):
                digest.update(original.weights[name].data)
        return digest.hexdigest()[:16]

    def _is_set(self, attribute: str) -> bool:
        return self.layer.setting(attribute, "None") != "None"

    def key(self, shapes: Shapes) -> str:
        """Return the problem and the default side's ops: segments with the same key take the same time."""
        nodes = self.layer.replaced.nodes if self.layer.replaced is not None else (self.layer.node,)
        return f"{self.layer.problem(shapes).text} : {' '.join(node.op_type for node in nodes)}"

    def default_model(self, shapes: Shapes) -> SplitModel:
        """Return the original segment as a model with inputs of `shapes`."""
        model = self.layer.model(shapes, swapped=False)
        names = (self.depthwise, self.name) if self.depthwise else (self.name,)
        convs = [node for node in model.message.graph.node if node.op_type == "Conv"]
        for node, name in zip(convs, names, strict=True):
            node.name = name
        return model

    def convswap_model(self, shapes: Shapes, choice: NodeChoice) -> SplitModel:
        """Return the segment as a model with its Conv swapped, and fused up to a stage."""
        return swapped_model(
            self.default_model(shapes).to_model(), {self.name: choice}, "it is not measured"
        )[0]

    def convswap_layer(self, shapes: Shapes, choice: NodeChoice) -> ConvLayer:
        """Return the Conv of `convswap_model`, with the nodes that were fused with it.

        The Conv is read from that model because fusion may add a bias.
        """
        (layer,) = conv_layers(self.convswap_model(shapes, choice))
        return layer

    def bare_conv(self, precision: str) -> ConvLayer:
        """Return the Conv without its followers, except those that are folded into its weights."""
        node = copy_of(self.layer.node)
        node.op_type = "Conv"
        del node.input[3:]
        while node.input and not node.input[-1]:
            node.input.pop()
        attributes = [attribute for attribute in node.attribute if attribute.name in CONV_ATTRIBUTES]
        del node.attribute[:]
        node.attribute.extend(attributes)
        constants = {name: tensor for name, tensor in self.layer.constants.items() if name in node.input}
        conv = replace(self.layer, node=node, constants=constants, replaced=None)
        return conv.with_setting("precision", precision)

    def bare_conv_weights(self, shapes: Shapes) -> Weights:
        """Return the large weights of `bare_conv`, by their names, for inputs of `shapes`."""
        weights, names = self.layer.weights, [str(name) for name in self.layer.node.input[1:3]]
        folded = [
            name for name in names if name not in weights and is_external_weight(self.layer.constants[name])
        ]
        if not folded:
            return weights
        model = self.convswap_model(shapes, NodeChoice(max_stage=Stage.FOLDED))
        (layer,) = conv_layers(model)
        folded_names = dict(zip(names, layer.node.input[1:3], strict=True))
        return {**weights, **{name: model.weights[folded_names[name]] for name in folded}}


def segments_of(swapped: SplitModel, unfused: SplitModel | None) -> tuple[Segment, ...]:
    """Return the segments of the main graph and of the branches of Ifs.

    `swapped` and `unfused` are as for `conv_layers`. A Conv in a branch has a segment only if its weights are
    constant.
    """
    segments = [Segment(layer) for layer in conv_layers(swapped, unfused)]
    for path in branch_paths(swapped.message.graph):
        branch = _without_computed_weights(branch_model(swapped.message, path))
        if not any(is_convswap_op(node) for node in branch.graph.node):
            continue
        original = unfused and unfused._replace(message=branch_model(unfused.message, path))
        segments += [
            Segment(layer, path) for layer in conv_layers(swapped._replace(message=branch), original)
        ]
    return tuple(segments)


def pairs_of(
    swapped: SplitModel, unfused: SplitModel | None, depthwise_names: Mapping[str, str]
) -> tuple[Segment, ...]:
    """Return the segments of the main graph in which a depthwise Conv is fused with a following 1x1 Conv.

    `swapped` and `unfused` are as for `conv_layers`; `depthwise_names` maps the name of the 1x1 Conv to that
    of the depthwise Conv.
    """
    return tuple(
        Segment(layer, depthwise=depthwise_names[layer.name])
        for layer in conv_layers(swapped, unfused)
        if layer.convolutions == 2 and layer.name in depthwise_names
    )


def _without_computed_weights(branch: onnx.ModelProto) -> onnx.ModelProto:
    """Remove convswap nodes with computed weights from `branch`, and return it."""
    constants = constants_of(branch.graph)
    nodes = [node for node in branch.graph.node if not is_convswap_op(node) or node.input[1] in constants]
    del branch.graph.node[:]
    branch.graph.node.extend(nodes)
    return branch


def swapped_model(
    model: ir.Model,
    choices: Mapping[str, NodeChoice],
    why_others: str,
    layout: str = DEFAULT_LAYOUT,
    batch: int = 1,
    quantise: bool = False,
) -> tuple[SplitModel, SwapResult]:
    """Return `model` swapped by `swap_selected`, and the result of the swap, whose model has no weights."""
    with released_at_once():
        result = swap_selected(model, choices, why_others, layout=layout, batch=batch, quantise=quantise)
        return split_model_in_place(result.model), result


def replicated(model: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """Return a model with `count` copies of the nodes of `model`, all of which read the same inputs.

    The copies share the fixed cost of starting a run; each has the host's time for launching its nodes.
    """
    copy = copy_of(model)
    computed = {name for node in model.graph.node for name in node.output if name}
    for number in range(1, count):
        for node in model.graph.node:
            node_copy = copy.graph.node.add()
            node_copy.CopyFrom(node)
            node_copy.name = f"{node.name}/{number}"
            for names in (node_copy.input, node_copy.output):
                for index, name in enumerate(names):
                    if name in computed:
                        names[index] = f"{name}/{number}"
        for output in model.graph.output:
            output_copy = copy.graph.output.add()
            output_copy.CopyFrom(output)
            output_copy.name = f"{output.name}/{number}"
    return copy
