"""`optimize` takes the ways that are measured to be faster, and writes only what gains as a whole."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from command_line import only_line_of_refusal
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import Stage
from convswap.graph.swap import FLOAT16_ON_CPU, NodeChoice
from convswap.optimizing import end_to_end, measuring, preparation
from convswap.optimizing.choice import DEFAULT_VARIANT
from convswap.optimizing.optimize import optimize
from convswap.optimizing.preparation import OptimizeOptions
from convswap.optimizing.report import optimization_verdict
from convswap.optimizing.segments import replicated
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session
from onnx import helper, numpy_helper
from swap_models import tensor_info, text_model, weights
from verdict_models import FLOAT16_FEEDS, float16_overflow

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads(Path(preparation.__file__).with_name("schema.json").read_text(encoding="utf-8"))
CPU = Device("cpu", "asked for")
SHAPES = {"x": (2, 3, 12, 12)}


def network(more: str = "") -> onnx.ModelProto:
    """Return a network whose Convs can take in all there is: a residual, activations, a pool; and `more`."""
    nodes = f"""
      [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
      [relu] r = Relu(a)
      [block] c = Conv <pads = [1, 1, 1, 1]> (r, w2)
      [add] s = Add(c, r)
      [sigmoid] g = Sigmoid(s)
      [mul] m = Mul(s, g)
      [last] d = Conv(m, w3)
      [tanh] t = Tanh(d)
      [pool] y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
      {more}"""
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (4, 8, 3, 3)}
    tensors = [weights(name, *shape) for name, shape in shapes.items()]
    return text_model(nodes, *tensors, inputs="float[n, 3, 12, 12] x")


@pytest.fixture(autouse=True)
def own_table(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path / "kept" / "tuning.txt"))


@pytest.fixture
def pretended(monkeypatch):
    """Return what sets the times that are measured: of each Conv's ways, and of the whole model."""

    def pretend(ways, default_and_ours=(2.0, 1.0)):
        def variant_times(segment, inputs, precision, device):
            own = ways[segment.name]
            return {way: own.get(way, 9.0) for way in (DEFAULT_VARIANT, *segment.stages)}

        monkeypatch.setattr(measuring, "variant_times", variant_times)
        monkeypatch.setattr(
            end_to_end, "end_to_end_times", lambda sessions, feeds, device: list(default_and_ours)
        )

    return pretend


FASTEST_FUSED = {
    "stem": {DEFAULT_VARIANT: 1.0, Stage.ACTIVATION: 0.5},
    "block": {DEFAULT_VARIANT: 1.0, Stage.RESIDUAL: 0.4, Stage.ACTIVATION: 0.8},
    "last": {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 1.0},
}


def test_each_conv_is_taken_the_way_that_was_fastest(pretended, tmp_path):
    pretended(FASTEST_FUSED)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    taken = {node.node: (node.taken, node.takes_in) for node in found.nodes}
    assert taken == {
        "stem": ("fused", ("Relu",)),
        "block": ("fused", ("Add",)),
        "last": ("default", ()),
    }
    written = onnx.load(found.written)
    assert [node.op_type for node in written.graph.node if node.domain == "convswap"] == ["FusedConv"] * 2
    assert [node.name for node in written.graph.node if node.domain == "" and node.op_type == "Conv"] == [
        "last"
    ]


def test_the_written_file_runs_and_answers_as_the_original(pretended, tmp_path):
    pretended(FASTEST_FUSED)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[2, 3])
    options = onnxruntime.SessionOptions()
    convswap.register(options)
    x = np.random.default_rng(1).standard_normal((5, 3, 12, 12)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(found.written), options, providers=["CPUExecutionProvider"])
    expected = make_session(network(), DEFAULT, CPU).run(None, {"x": x})[0]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_written_where_nothing_gains(pretended, tmp_path):
    pretended({name: {DEFAULT_VARIANT: 1.0} for name in FASTEST_FUSED})
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert (found.written, found.speedup, list(tmp_path.glob("*.onnx"))) == (None, None, [])
    assert {node.taken for node in found.nodes} == {"default"}


@pytest.mark.parametrize("end_to_end_times", [(1.0, 1.1), (1.0, 1.0001)])
def test_nothing_is_written_where_the_whole_model_is_slower(pretended, tmp_path, end_to_end_times):
    pretended(FASTEST_FUSED, end_to_end_times)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert (found.written, found.speedup < 1) == (None, True)


def make_ours_wrong(monkeypatch, change) -> None:
    """Have `change` give what whole models with nodes of ours answer, of what they do answer."""
    real_session, real_run, ours = end_to_end.make_session, end_to_end.run_named, []

    def session(model, side, device):
        made = real_session(model, side, device)
        ours.extend([made] * side.uses_convswap)
        return made

    def run(made, feeds):
        outputs = real_run(made, feeds)
        return change(outputs) if made in ours else outputs

    monkeypatch.setattr(end_to_end, "make_session", session)
    monkeypatch.setattr(end_to_end, "run_named", run)


def test_nothing_is_written_where_the_answers_differ(pretended, tmp_path, monkeypatch):
    pretended(FASTEST_FUSED)
    make_ours_wrong(monkeypatch, lambda outputs: {"y": outputs["y"] + np.float32(0.1)})
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert (found.answers_agree, found.written) == (False, None)


def test_a_part_of_the_convs_is_taken_where_the_whole_gains_only_so(pretended, tmp_path, monkeypatch):
    ways = {
        name: {DEFAULT_VARIANT: 1.0, Stage.FOLDED: time}
        for name, time in zip(FASTEST_FUSED, (0.2, 0.5, 0.9), strict=True)
    }
    pretended(ways)
    counts = []

    def times(sessions, feeds, device):
        counts.append(len(counts))
        return [1.0, 1.2] if len(counts) == 1 else [1.0, 0.8]

    monkeypatch.setattr(end_to_end, "end_to_end_times", times)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert [node.node for node in found.nodes if node.taken != "default"] == ["stem", "block"]
    assert "faster without" in next(node.why for node in found.nodes if node.node == "last")


def test_nothing_is_written_where_one_batch_loses_though_the_mean_gains(pretended, tmp_path, monkeypatch):
    pretended(FASTEST_FUSED)
    by_batch = {1: [1.0, 0.4], 4: [1.0, 1.1]}
    monkeypatch.setattr(
        end_to_end, "end_to_end_times", lambda sessions, feeds, device: by_batch[len(feeds["x"].numpy())]
    )
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[1, 4])
    assert (found.written, found.gains, found.speedup > 1) == (None, False, True)
    assert (
        "No file is written" in list(optimization_verdict(found))[-1]
        and "0.91x as fast at batch 4" in list(optimization_verdict(found))[-1]
    )


def test_a_model_that_answers_in_classes_alone_is_judged_by_the_share_that_differs(pretended, monkeypatch):
    model = network()
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["class"], axis=1, keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(tensor_info("class", None, None, None, element_type=onnx.TensorProto.INT64))
    pretended(FASTEST_FUSED)
    assert optimize(model, None, device="cpu").answers_agree

    def wrong(outputs):
        classes = outputs["class"]
        return {"class": classes + (np.arange(classes.size).reshape(classes.shape) % 50 == 0)}

    make_ours_wrong(monkeypatch, wrong)
    assert not optimize(model, None, device="cpu").answers_agree


def with_outputs_of(kind: str) -> onnx.ModelProto:
    """Return the network with another output, or that alone."""
    strings = "class = ArgMax <axis = 1, keepdims = 0> (y)  more = Cast <to = 8> (class)"
    # Infinity or 1: between them Exp would magnify what processors round differently.
    infinity = "sign = Sign(t)  large = Mul(sign, some)  positive = Relu(large)  more = Exp(positive)"
    more = {
        "strings alone": strings,
        "strings too": strings,
        "a sequence": "more = SequenceConstruct(y, t)",
        "infinity": "large = Mul(t, much)  more = Exp(large)",
        "infinity in float32": infinity,
        "random numbers": "noise = RandomNormalLike(t)  more = Add(t, noise)",
        "no element": "more = Slice(t, zero, zero)",
    }
    model = network(more[kind])
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1e4), "much"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(200), "some"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
    if kind == "a sequence":
        of = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        value = helper.make_value_info("more", helper.make_sequence_type_proto(of))
    else:
        strings = kind.startswith("strings")
        element_type = onnx.TensorProto.STRING if strings else onnx.TensorProto.FLOAT
        value = helper.make_tensor_value_info("more", element_type, None)
    if kind == "strings alone":
        del model.graph.output[:]
    model.graph.output.append(value)
    return model


KINDS = ["strings alone", "strings too", "a sequence", "infinity", "infinity in float32", "random numbers"]


@pytest.mark.parametrize("kind", [*KINDS, "no element"])
def test_outputs_of_all_kinds_are_held_against_the_original_by_their_names(
    kind, pretended, tmp_path, monkeypatch
):
    pretended(FASTEST_FUSED)
    model, json_file = with_outputs_of(kind), tmp_path / "found.json"
    onnx.save(model, tmp_path / "model.onnx")
    command = ["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "faster.onnx")]
    assert main([*command, "--device", "cpu", "--json", str(json_file)]) == 0
    found = json.loads(json_file.read_text(encoding="utf-8"))
    jsonschema.validate(found, SCHEMA)
    assert found["answers_agree"] and found["reference"] == "float64"
    if kind == "no element":
        return

    def wrong(outputs):
        name = next(name for name in outputs if name.startswith("more"))
        values = outputs[name]
        off = np.full_like(values, "?") if values.dtype == object else 5 * np.ones_like(values)
        return {**outputs, name: off}

    make_ours_wrong(monkeypatch, wrong)
    assert not optimize(model, None, device="cpu").answers_agree


def test_float16_may_differ_by_what_float16_loses(pretended):
    model = network()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    pretended(FASTEST_FUSED)
    found = optimize(model, None, device="cpu")
    # float16 sums differ in the last of eleven bits, far above what float32 may.
    assert found.errors["between"] > 1e-5
    assert found.answers_agree


def test_float64_is_asked_once_however_many_models_are_tried(pretended, monkeypatch):
    pretended(FASTEST_FUSED)
    real, tried, asked = end_to_end._run_end_to_end, [], []
    monkeypatch.setattr(end_to_end, "_run_end_to_end", lambda *given: tried.append(given) or real(*given))
    evaluate = end_to_end.evaluate
    monkeypatch.setattr(end_to_end, "evaluate", lambda *given: asked.append(given) or evaluate(*given))
    assert optimize(network(), None, device="cpu").reference == "float64"
    assert len(tried) > 1 and len(asked) == 1


def test_of_two_measurements_the_one_that_gains_less_counts(pretended, monkeypatch):
    pretended(FASTEST_FUSED)
    times = iter([[1.0, 0.5], [1.0, 0.8]] * 4)
    monkeypatch.setattr(end_to_end, "end_to_end_times", lambda sessions, feeds, device: next(times))
    assert optimize(network(), None, device="cpu").speedup == pytest.approx(1 / 0.8)


def test_a_second_call_measures_nothing_again(pretended, tmp_path, monkeypatch):
    pretended(FASTEST_FUSED)
    first = optimize(network(), None, device="cpu")
    monkeypatch.setattr(measuring, "variant_times", lambda *_: pytest.fail("it was measured before"))
    second = optimize(network(), None, device="cpu")
    assert [node.to_json() for node in second.nodes] == [node.to_json() for node in first.nodes]
    assert any("earlier call" in note for note in second.notes)
    assert not any("earlier call" in note for note in first.notes)


def test_a_damaged_file_of_measurements_is_measured_anew(pretended, tmp_path):
    pretended(FASTEST_FUSED)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "optimize.json").write_text('{"a": [1], "b"')
    assert optimize(network(), None, device="cpu").speedup == 2.0


@pytest.mark.parametrize("fault", ["no folder", "a folder", "a device", "no home folder"])
def test_measurements_that_cannot_be_kept_cost_one_note(pretended, tmp_path, monkeypatch, capsys, fault):
    pretended(FASTEST_FUSED)
    kept = tmp_path / "kept"
    if fault == "no folder":
        kept.write_text("")
    elif fault == "no home folder":
        monkeypatch.setattr("convswap.optimizing.measurement_cache.table_path", no_home_folder)
    else:
        kept.mkdir()
        (kept / "optimize.json").mkdir() if fault == "a folder" else os.mkfifo(kept / "optimize.json")
    assert optimize(network(), None, device="cpu").speedup == 2.0
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1
    assert notes[0].startswith("convswap: the measurements are not cached for later calls: ")


def no_home_folder():
    raise ConvswapError("there is no home folder")


def test_measurements_with_a_byte_order_mark_are_found(pretended, tmp_path):
    pretended(FASTEST_FUSED)
    optimize(network(), None, device="cpu")
    file = tmp_path / "kept" / "optimize.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert any("earlier call" in note for note in optimize(network(), None, device="cpu").notes)


def test_one_batch_is_taken_for_several(pretended):
    pretended(FASTEST_FUSED)
    assert optimize(network(), None, device="cpu", batches=4).options["batches"] == [4]


@pytest.mark.parametrize("target", ["pipe", "/proc/o.onnx", "model.onnx"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, target):
    onnx.save(network(), tmp_path / "model.onnx")
    os.mkfifo(tmp_path / "pipe")
    told = []
    with pytest.raises(ConvswapError, match="cannot write"):
        optimize(tmp_path / "model.onnx", tmp_path / target, device="cpu", progress=told.append)
    assert told == []


def test_a_model_that_cannot_be_written_in_the_end_is_told_after_the_results(
    pretended, tmp_path, monkeypatch, capsys
):
    pretended(FASTEST_FUSED)
    onnx.save(network(), tmp_path / "model.onnx")
    monkeypatch.setattr("convswap.graph.model_file.to_proto", full_disk)
    output = tmp_path / "o.onnx"
    assert main(["optimize", str(tmp_path / "model.onnx"), "-o", str(output), "--device", "cpu"]) == 2
    told = capsys.readouterr()
    assert "stem" in told.out and "To use" not in told.out
    assert told.err.splitlines()[-1] == f"convswap: cannot write '{output}': No space left on device"
    with pytest.raises(ConvswapError, match="No space left"):
        optimize(network(), output, device="cpu")


def full_disk(*_written):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_precision_match_takes_what_is_as_accurate_on_each_conv(monkeypatch):
    errors = {
        "stem": {"default": 6e-8, "tf32": 3e-4, "ieee": 9e-8},
        "block": {"default": 3e-4, "tf32": 3e-4},
        "last": {"default": 1e-8, "tf32": 3e-4, "ieee": 5e-6},
    }
    monkeypatch.setattr(measuring, "conv_errors", lambda segment, inputs, device: errors[segment.name])
    card = Device("cuda", "asked for", {"name": "a card"})
    prepared = preparation.prepare(network(), OptimizeOptions(), CPU)
    shared = measuring.MeasurementContext(replace(prepared, device=card), _NoInputs(), _NothingKept())
    pretended = {segment.name: measuring._precision(segment, (), shared)[0] for segment in prepared.segments}
    assert pretended == {"stem": "ieee", "block": "tf32", "last": None}


class _NoInputs:
    def of(self, segment):
        return [{}]


class _NothingKept:
    def get(self, key):
        return None

    def add(self, key, measured):
        pass


@pytest.mark.parametrize("name", ["stem", "block", "last"])
def test_every_way_of_a_segment_computes_the_same(name):
    prepared = preparation.prepare(network(), OptimizeOptions(), CPU)
    (segment,) = (one for one in prepared.segments if one.name == name)
    random = np.random.default_rng(3)
    shape = {"stem": (2, 3, 12, 12), "block": (2, 8, 12, 12), "last": (2, 8, 12, 12)}[name]
    feeds = {fed: random.standard_normal(shape).astype(np.float32) for fed in segment.layer.input_names}
    shapes = {fed: values.shape for fed, values in feeds.items()}
    expected = make_session(segment.default_model(shapes), DEFAULT, CPU).run(None, feeds)[0]
    assert (
        segment.stages
        == {
            "stem": (Stage.FOLDED, Stage.ACTIVATION),
            "block": (Stage.FOLDED, Stage.RESIDUAL, Stage.ACTIVATION),
            "last": (Stage.FOLDED, Stage.ACTIVATION, Stage.POOL),
        }[name]
    )
    for stage in segment.stages:
        model = replicated(
            segment.convswap_model(shapes, NodeChoice(precision="ieee", max_stage=stage)).message, 3
        )
        outputs = make_session(model, CONVSWAP, CPU, merges_equal_nodes=False).run(None, feeds)
        assert len(outputs) == 3
        for values in outputs:
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_real_measurement_keeps_to_the_schema(tmp_path):
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[1, 4])
    jsonschema.validate(json.loads(json.dumps(found.to_json(), allow_nan=False)), SCHEMA)
    assert [node.node for node in found.nodes] == ["stem", "block", "last"]
    assert all(set(node.default_ms) == {1, 4} for node in found.nodes)


@pytest.mark.alone
@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["match", "tf32"])
def test_on_a_card_the_optimized_model_is_no_slower_and_as_accurate(tmp_path, precision):
    found = optimize(
        "ece408-2018sp", tmp_path / "faster.onnx", device="cuda", batches=[64], precision=precision
    )
    jsonschema.validate(json.loads(json.dumps(found.to_json(), allow_nan=False)), SCHEMA)
    assert found.written is not None
    assert found.speedup > 1
    if precision == "match":
        for node in found.nodes:
            assert node.errors[node.precision] <= max(1.05 * node.errors["default"], 1e-6)


def test_the_command_writes_the_file_the_json_and_the_page_and_says_how_to_use_it(
    pretended, tmp_path, capsys
):
    pretended(FASTEST_FUSED)
    onnx.save(network(), tmp_path / "model.onnx")
    files = {name: tmp_path / name for name in ("faster.onnx", "found.json", "found.html")}
    arguments = ["-o", files["faster.onnx"], "--json", files["found.json"], "--html", files["found.html"]]
    status = main(["optimize", str(tmp_path / "model.onnx"), *map(str, arguments), "--device", "cpu"])
    printed = capsys.readouterr().out
    assert (status, all(file.exists() for file in files.values())) == (0, True)
    jsonschema.validate(json.loads(files["found.json"].read_text()), SCHEMA)
    assert "2 of 3 Convs swapped; 2.00x as fast" in printed
    assert "convswap.register(options)" in printed.splitlines()[-2] + printed.splitlines()[-1]
    assert "2.00x" in files["found.html"].read_text()


def test_the_command_ends_with_1_where_nothing_gains(pretended, tmp_path, capsys):
    pretended({name: {DEFAULT_VARIANT: 1.0} for name in FASTEST_FUSED})
    onnx.save(network(), tmp_path / "model.onnx")
    html = tmp_path / "found.html"
    arguments = ["-o", str(tmp_path / "faster.onnx"), "--device", "cpu", "--html", str(html)]
    assert main(["optimize", str(tmp_path / "model.onnx"), *arguments]) == 1
    assert "Nothing gains" in capsys.readouterr().out
    assert "Nothing gains" in html.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--batch", "1,1"], "batches were given as [1, 1]"),
        (["--batch", "x"], "--batch 'x'"),
        (["--batch", "1,0"], "batch must be at least 1, but 0 was given"),
        (["--precision", "float16"], "unknown precision 'float16'"),
        (["--mean", "1"], "--mean has no meaning without --inputs"),
        (["--json", "faster.onnx"], "faster.onnx"),
    ],
)
def test_bad_usage_is_one_line(arguments, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "model.onnx")
    line = only_line_of_refusal(
        capsys, "optimize", "model.onnx", "-o", "faster.onnx", "--device", "cpu", *arguments
    )
    assert told in line


def test_a_swapped_model_is_refused():
    swapped = convswap.swap(network()).to_proto()
    with pytest.raises(ConvswapError, match="3 Conv swapped already; give the model as it was"):
        optimize(swapped, None, device="cpu")


def test_memory_that_will_not_do_is_told_in_one_line_before_the_start(monkeypatch, tmp_path, capsys):
    onnx.save(network(), tmp_path / "model.onnx")
    monkeypatch.setattr(preparation, "free_memory", lambda: 1_000)
    model, faster = str(tmp_path / "model.onnx"), str(tmp_path / "faster.onnx")
    assert main(["optimize", model, "-o", faster, "--device", "cpu"]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "memory" in line)
    assert line.startswith("convswap: the memory does not suffice: optimizing takes about")


def test_batch_whose_values_do_not_fit_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(preparation, "free_memory", lambda: 10_000_000)
    monkeypatch.setattr(measuring, "variant_times", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(ConvswapError, match=r"memory does not suffice: optimizing .* batches of 5000, and"):
        optimize(network(), None, device="cpu", batches=[1, 5000])


def test_a_model_with_a_sequence_and_a_default_is_written_with_the_inputs_that_it_has(pretended, tmp_path):
    model = network()
    model.graph.node.append(helper.make_node("ConcatFromSequence", ["parts"], ["more"], axis=0))
    model.graph.node.append(helper.make_node("Mul", ["more", "factor"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2.0]), "factor"))
    element = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None])
    parts = helper.make_value_info("parts", helper.make_sequence_type_proto(element))
    model.graph.input.extend([parts, tensor_info("factor", 1)])
    model.graph.output.append(tensor_info("z", None))
    pretended(FASTEST_FUSED)
    x, own = np.ones(SHAPES["x"], np.float32), [np.float32([1, 2]), np.float32([3])]
    given = {"x": x, "parts": own, "factor": np.float32([5])}
    found = optimize(model, tmp_path / "faster.onnx", device="cpu", inputs=given)
    assert found.answers_agree and found.written is not None
    written = onnx.load(found.written)
    assert [value.name for value in written.graph.input] == ["x", "parts", "factor"]
    assert any(node.domain == "convswap" for node in written.graph.node)
    options = onnxruntime.SessionOptions()
    convswap.register(options)
    session = onnxruntime.InferenceSession(str(found.written), options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["z"], {"x": x, "parts": own})[0], np.float32([2, 4, 6]))


def test_a_conv_that_changes_the_answers_is_left_and_the_others_are_written(pretended, tmp_path):
    pretended({name: {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 0.5} for name in ("large", "small")})
    model = float16_overflow(second=True)
    found = optimize(model, tmp_path / "faster.onnx", device="cpu", inputs=FLOAT16_FEEDS)
    rows = {node.node: node for node in found.nodes}
    assert (rows["large"].taken, rows["small"].taken) == ("default", "swapped")
    assert rows["large"].why == (
        "it changes the model's answers: relative L2 error not finite, and the limit is 0.01"
    )
    assert found.answers_agree and FLOAT16_ON_CPU in found.notes
    convswap.register(options := onnxruntime.SessionOptions())
    session = onnxruntime.InferenceSession(str(found.written), options, providers=["CPUExecutionProvider"])
    y, z = session.run(None, FLOAT16_FEEDS)
    np.testing.assert_allclose(y, 81, rtol=1e-3)
    np.testing.assert_allclose(z, 405, rtol=1e-3)
    jsonschema.validate(found.to_json(), SCHEMA)


def test_where_every_conv_that_gains_changes_the_answers_none_is_taken(pretended, tmp_path):
    pretended({"large": {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 0.5}})
    found = optimize(float16_overflow(), tmp_path / "faster.onnx", device="cpu", inputs=FLOAT16_FEEDS)
    assert found.written is None and {node.taken for node in found.nodes} == {"default"}
    assert (
        next(iter(optimization_verdict(found)))
        == "No Conv is swapped: 1 of 1 change the answers, and no other is faster."
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_answers_without_a_finite_element_are_no_reason_to_write(value, pretended, tmp_path, capsys):
    pretended(FASTEST_FUSED)
    model = network()
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Add", ["before", "value"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(value), "value"))
    onnx.save(model, tmp_path / "model.onnx")
    json_file, page = tmp_path / "found.json", tmp_path / "page.html"
    command = [
        "optimize",
        str(tmp_path / "model.onnx"),
        "-o",
        str(tmp_path / "faster.onnx"),
        "--device",
        "cpu",
    ]
    assert main([*command, "--json", str(json_file), "--html", str(page)]) == 1
    found = json.loads(json_file.read_text(encoding="utf-8"))
    jsonschema.validate(found, SCHEMA)
    assert found["relative_l2_error"]["between"] is None and found["written"] is None
    assert not found["answers_agree"] and not (tmp_path / "faster.onnx").exists()
    told = capsys.readouterr().out
    assert "NOTHING COULD BE COMPARED: no output has an element that is finite, on either side." in told
    assert "answers agree" not in told + page.read_text(encoding="utf-8")


def test_a_model_whose_outputs_are_empty_is_written_by_what_its_convs_give(pretended, tmp_path):
    pretended(FASTEST_FUSED)
    model = network()
    # Above every value: as a detector that finds nothing.
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1e9), "high"))
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Greater", ["before", "high"], ["is_found"]))
    model.graph.node.append(helper.make_node("Compress", ["before", "found"], ["y"]))
    model.graph.node.insert(
        len(model.graph.node) - 1, helper.make_node("Reshape", ["is_found", "flat"], ["found"])
    )
    model.graph.initializer.append(numpy_helper.from_array(np.int64([-1]), "flat"))
    del model.graph.output[:]
    model.graph.output.append(tensor_info("y", None))
    found = optimize(model, tmp_path / "faster.onnx", device="cpu")
    assert found.answers_agree and found.written is not None
    assert found.to_json()["relative_l2_error"]["between"] is None
    assert any("Every output is empty" in line for line in optimization_verdict(found))
