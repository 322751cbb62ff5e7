"""Models with maps, sequences and optionals as values are swapped, and keep their types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import swap_models as models
from convswap.graph.model_file import load_model
from convswap.graph.serialisation import to_proto
from convswap.graph.swap import swap
from onnx import TensorProto, helper, numpy_helper
from op_sessions import make_session, onnx_outputs

X = np.random.default_rng(3).normal(size=(2, 3, 8, 8)).astype(np.float32)
MAP = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
MAPS = helper.make_sequence_type_proto(MAP)


def zip_map(source: str = "p", output: str = "y") -> str:
    return f"[zip] {output} = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2, 3]> ({source})"


def classifier(nodes: str, outputs: str = "y", inputs: str = "", **kinds: onnx.TypeProto) -> onnx.ModelProto:
    """Return a Conv that ends in the probabilities `p`, followed by `nodes` that compute the `outputs`.

    `kinds` are types that ONNX's text format cannot express.
    """
    model = models.text_model(
        f"[conv] c = Conv(x, w)  g = GlobalAveragePool(c)  f = Flatten(g)  p = Softmax(f)  {nodes}",
        models.weights("w", 4, 3, 3, 3),
        inputs=f"float{list(X.shape)} x {inputs}",
        outputs=outputs,
        domains="ai.onnx.ml:3",
    )
    for value in (*model.graph.input, *model.graph.output):
        if value.name in kinds:
            value.type.CopyFrom(kinds[value.name])
    return model


SPLIT, OPTIONAL = "{} = SplitToSequence <axis = 0> (p)", "{} = Optional(p)"
SEQUENCE = "seq(float[2, k])"
MODELS = {
    "maps": classifier(zip_map(), y=MAPS),
    "sequence": classifier(SPLIT.format("y"), f"{SEQUENCE} y"),
    "optional": classifier(OPTIONAL.format("y"), "optional(float[2, 4]) y"),
    "all": classifier(
        f"{zip_map()} {SPLIT.format('s')} {OPTIONAL.format('o')}",
        f"y, {SEQUENCE} s, optional(float[2, 4]) o",
        y=MAPS,
    ),
}


def types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    return {value.name: value.type for value in (*model.graph.input, *model.graph.output)}


def assert_same(actual, expected) -> None:
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for first, second in zip(actual, expected, strict=True):
            assert_same(first, second)
    elif isinstance(expected, dict):
        assert actual == pytest.approx(expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_outputs_that_are_no_tensors_keep_their_types_and_values(kind, fuse, tmp_path):
    original = MODELS[kind]
    before = original.SerializeToString()
    onnx.save(original, tmp_path / "model.onnx")
    for source in (original, tmp_path / "model.onnx"):
        result = swap(source, fuse=fuse)
        assert (result.swapped, result.not_swapped) == (("conv",), ())
        result.save(tmp_path / "out.onnx")
        for swapped in (result.to_proto(), onnx.load(tmp_path / "out.onnx")):
            assert types(swapped) == types(original)
            assert all(not value.metadata_props for value in swapped.graph.output)
        actual = make_session(str(tmp_path / "out.onnx")).run(None, {"x": X})
        assert_same(actual, onnx_outputs(original, {"x": X}))
    assert original.SerializeToString() == before


def test_a_swapped_model_with_maps_can_be_swapped_again(tmp_path):
    swap(MODELS["maps"]).save(tmp_path / "once.onnx")
    swap(tmp_path / "once.onnx").save(tmp_path / "twice.onnx")
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "twice.onnx").read_bytes()


def test_inputs_and_inner_values_may_be_maps_too(tmp_path):
    """The input is a map of features. The main graph and a branch each declare one inner map."""
    branches = ", ".join(
        f"{key} = {key} () => (int64 {key}) {{ {zip_map('p', f'{key}_maps')} "
        f"{key} = SequenceLength({key}_maps) }}"
        for key in ("then_branch", "else_branch")
    )
    model = classifier(
        f"""
        d = ai.onnx.ml.DictVectorizer <int64_vocabulary = [0, 1, 2, 3]> (features)
        s = Add(p, d)
        {zip_map("s", "inner")}
        n = If <{branches}> (flag)""",
        outputs="float[2, 4] s, int64 n",
        inputs=", features, bool flag",
        features=MAP,
    )
    for attribute in model.graph.node[-1].attribute:
        maps = helper.make_value_info(f"{attribute.name}_maps", MAPS)
        attribute.g.value_info.append(maps)
    model.graph.value_info.append(helper.make_value_info("inner", MAPS))
    onnx.save(model, tmp_path / "model.onnx")
    swapped = swap(tmp_path / "model.onnx").to_proto()
    assert types(swapped) == types(model)
    assert {value.name: value.type for value in swapped.graph.value_info}["inner"] == MAPS
    conditional = next(node for node in swapped.graph.node if node.op_type == "If")
    for attribute in conditional.attribute:
        (inner,) = (value for value in attribute.g.value_info if value.name.endswith("maps"))
        assert inner.type == MAPS


def test_element_types_are_inferred_in_models_with_maps():
    """The Conv's own values have no declared types, and its weight is the output of a node."""
    model = classifier(zip_map(), y=MAPS)
    model.graph.node.insert(0, helper.make_node("Identity", ["w"], ["v"]))
    model.graph.node.insert(0, helper.make_node("Neg", ["x"], ["n"]))
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    conv.input[:] = ["n", "v"]
    assert swap(model).swapped == ("conv",)


def test_models_with_maps_are_loaded_with_weights_in_a_data_file(tmp_path):
    model = classifier(zip_map(), y=MAPS)
    onnx.save(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="data.bin", size_threshold=0
    )
    loaded = load_model(tmp_path / "model.onnx")
    assert types(to_proto(loaded)) == types(onnx.load(tmp_path / "model.onnx"))
    swap(tmp_path / "model.onnx").save(tmp_path / "out.onnx")
    assert types(onnx.load(tmp_path / "out.onnx"))["y"] == MAPS
    weights = onnx.load(tmp_path / "out.onnx").graph.initializer[0]
    expected = models.weights("w", 4, 3, 3, 3)
    np.testing.assert_array_equal(numpy_helper.to_array(weights), numpy_helper.to_array(expected))
