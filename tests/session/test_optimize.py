"""`optimize` selects the stages that are measured to be faster, and writes only models that are faster."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import convswap
import numpy as np
import onnx
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
from convswap.runtime.tuning import table_path
from onnx import helper, numpy_helper
from op_sessions import cpu_session
from swap_models import tensor_info, text_model, weights
from verdict_models import FLOAT16_FEEDS, float16_overflow

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads(Path(preparation.__file__).with_name("schema.json").read_text(encoding="utf-8"))
CPU = Device("cpu", "asked for")
SHAPES = {"x": (2, 3, 12, 12)}


def network(more_nodes: str = "") -> onnx.ModelProto:
    """Return a network with every kind of epilogue: a residual, activations and a pool; and `more_nodes`."""
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
      {more_nodes}"""
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (4, 8, 3, 3)}
    tensors = [weights(name, *shape) for name, shape in shapes.items()]
    return text_model(nodes, *tensors, inputs="float[n, 3, 12, 12] x")


@pytest.fixture
def set_times(monkeypatch):
    """Return a function that sets the measured times: of each Conv's stages, and end to end."""

    def pretend(times_of_stages, default_and_ours=(2.0, 1.0)):
        def variant_times(segment, inputs, precision, device):
            stage_times = times_of_stages[segment.name]
            return {stage: stage_times.get(stage, 9.0) for stage in (DEFAULT_VARIANT, *segment.stages)}

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


def test_each_conv_is_written_at_the_stage_that_was_fastest(set_times, tmp_path):
    set_times(FASTEST_FUSED)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    selected = {node.node: (node.taken, node.takes_in) for node in result.nodes}
    assert selected == {
        "stem": ("fused", ("Relu",)),
        "block": ("fused", ("Add",)),
        "last": ("default", ()),
    }
    written = onnx.load(result.written)
    assert [node.op_type for node in written.graph.node if node.domain == "convswap"] == ["FusedConv"] * 2
    assert [node.name for node in written.graph.node if node.domain == "" and node.op_type == "Conv"] == [
        "last"
    ]


def test_the_written_file_gives_the_outputs_of_the_original(set_times, tmp_path):
    set_times(FASTEST_FUSED)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[2, 3])
    x = np.random.default_rng(1).standard_normal((5, 3, 12, 12)).astype(np.float32)
    expected = make_session(network(), DEFAULT, CPU).run(None, {"x": x})[0]
    (actual,) = cpu_session(onnx.load(result.written)).run(None, {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_written_where_nothing_is_faster(set_times, tmp_path):
    set_times({name: {DEFAULT_VARIANT: 1.0} for name in FASTEST_FUSED})
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert (result.written, result.speedup, list(tmp_path.glob("*.onnx"))) == (None, None, [])
    assert {node.taken for node in result.nodes} == {"default"}


@pytest.mark.parametrize("end_to_end_times", [(1.0, 1.1), (1.0, 1.0001)])
def test_nothing_is_written_where_the_whole_model_is_slower(set_times, tmp_path, end_to_end_times):
    set_times(FASTEST_FUSED, end_to_end_times)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert (result.written, result.speedup < 1) == (None, True)


def change_our_outputs(monkeypatch, change) -> None:
    """Apply `change` to the outputs of end-to-end models with nodes of ours."""
    real_session, real_run, our_sessions = end_to_end.make_session, end_to_end.run_named, []

    def session(model, side, device):
        new_session = real_session(model, side, device)
        our_sessions.extend([new_session] * side.uses_convswap)
        return new_session

    def run(new_session, feeds):
        outputs = real_run(new_session, feeds)
        return change(outputs) if new_session in our_sessions else outputs

    monkeypatch.setattr(end_to_end, "make_session", session)
    monkeypatch.setattr(end_to_end, "run_named", run)


def test_nothing_is_written_where_the_outputs_differ(set_times, tmp_path, monkeypatch):
    set_times(FASTEST_FUSED)
    change_our_outputs(monkeypatch, lambda outputs: {"y": outputs["y"] + np.float32(0.1)})
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert (result.answers_agree, result.written) == (False, None)


def test_some_of_the_convs_are_selected_where_only_that_is_faster_end_to_end(
    set_times, tmp_path, monkeypatch
):
    times_of_stages = {
        name: {DEFAULT_VARIANT: 1.0, Stage.FOLDED: time}
        for name, time in zip(FASTEST_FUSED, (0.2, 0.5, 0.9), strict=True)
    }
    set_times(times_of_stages)
    counts = []

    def times(sessions, feeds, device):
        counts.append(len(counts))
        return [1.0, 1.2] if len(counts) == 1 else [1.0, 0.8]

    monkeypatch.setattr(end_to_end, "end_to_end_times", times)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert [node.node for node in result.nodes if node.taken != "default"] == ["stem", "block"]
    assert "faster without" in next(node.why for node in result.nodes if node.node == "last")


def test_nothing_is_written_where_one_batch_is_slower_though_the_mean_is_faster(
    set_times, tmp_path, monkeypatch
):
    set_times(FASTEST_FUSED)
    by_batch = {1: [1.0, 0.4], 4: [1.0, 1.1]}
    monkeypatch.setattr(
        end_to_end, "end_to_end_times", lambda sessions, feeds, device: by_batch[len(feeds["x"].numpy())]
    )
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[1, 4])
    assert (result.written, result.gains, result.speedup > 1) == (None, False, True)
    assert (
        "No file is written" in list(optimization_verdict(result))[-1]
        and "0.91x as fast at batch 4" in list(optimization_verdict(result))[-1]
    )


def test_a_model_with_classes_alone_is_compared_by_the_fraction_that_differs(set_times, monkeypatch):
    model = network()
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["class"], axis=1, keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(tensor_info("class", None, None, None, element_type=onnx.TensorProto.INT64))
    set_times(FASTEST_FUSED)
    assert optimize(model, None, device="cpu").answers_agree

    def change_classes(outputs):
        classes = outputs["class"]
        return {"class": classes + (np.arange(classes.size).reshape(classes.shape) % 50 == 0)}

    change_our_outputs(monkeypatch, change_classes)
    assert not optimize(model, None, device="cpu").answers_agree


def with_outputs_of(kind: str) -> onnx.ModelProto:
    """Return the network with an additional output of some kind, or with only that one."""
    strings = "class = ArgMax <axis = 1, keepdims = 0> (y)  more = Cast <to = 8> (class)"
    # Infinity or 1: for values between, Exp would magnify rounding differences of processors.
    infinity = "sign = Sign(t)  large = Mul(sign, some)  positive = Relu(large)  more = Exp(positive)"
    nodes_of = {
        "strings alone": strings,
        "strings too": strings,
        "a sequence": "more = SequenceConstruct(y, t)",
        "infinity": "large = Mul(t, much)  more = Exp(large)",
        "infinity in float32": infinity,
        "random numbers": "noise = RandomNormalLike(t)  more = Add(t, noise)",
        "no element": "more = Slice(t, zero, zero)",
    }
    model = network(nodes_of[kind])
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
def test_outputs_of_all_kinds_are_compared_with_the_original_by_their_names(
    kind, set_times, tmp_path, monkeypatch
):
    set_times(FASTEST_FUSED)
    model, json_file = with_outputs_of(kind), tmp_path / "found.json"
    onnx.save(model, tmp_path / "model.onnx")
    command = ["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "faster.onnx")]
    assert main([*command, "--device", "cpu", "--json", str(json_file)]) == 0
    report = json.loads(json_file.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    assert report["answers_agree"] and report["reference"] == "float64"
    if kind == "no element":
        return

    def change(outputs):
        name = next(name for name in outputs if name.startswith("more"))
        values = outputs[name]
        off = np.full_like(values, "?") if values.dtype == object else 5 * np.ones_like(values)
        return {**outputs, name: off}

    change_our_outputs(monkeypatch, change)
    assert not optimize(model, None, device="cpu").answers_agree


def test_float16_may_differ_by_what_float16_loses(set_times):
    model = network()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    set_times(FASTEST_FUSED)
    result = optimize(model, None, device="cpu")
    # float16 sums differ in the last of eleven bits, far above the tolerance of float32.
    assert result.errors["between"] > 1e-5
    assert result.answers_agree


def test_float64_is_asked_once_however_many_models_are_tried(set_times, monkeypatch):
    set_times(FASTEST_FUSED)
    real, models, evaluations = end_to_end._run_end_to_end, [], []
    monkeypatch.setattr(
        end_to_end, "_run_end_to_end", lambda *arguments: models.append(arguments) or real(*arguments)
    )
    evaluate = end_to_end.evaluate
    monkeypatch.setattr(
        end_to_end, "evaluate", lambda *arguments: evaluations.append(arguments) or evaluate(*arguments)
    )
    assert optimize(network(), None, device="cpu").reference == "float64"
    assert len(models) > 1 and len(evaluations) == 1


def test_of_two_measurements_the_smaller_speedup_counts(set_times, monkeypatch):
    set_times(FASTEST_FUSED)
    times = iter([[1.0, 0.5], [1.0, 0.8]] * 4)
    monkeypatch.setattr(end_to_end, "end_to_end_times", lambda sessions, feeds, device: next(times))
    assert optimize(network(), None, device="cpu").speedup == pytest.approx(1 / 0.8)


def test_a_second_call_measures_nothing_again(set_times, tmp_path, monkeypatch):
    set_times(FASTEST_FUSED)
    first = optimize(network(), None, device="cpu")
    monkeypatch.setattr(measuring, "variant_times", lambda *_: pytest.fail("it was measured before"))
    second = optimize(network(), None, device="cpu")
    assert [node.to_json() for node in second.nodes] == [node.to_json() for node in first.nodes]
    assert any("earlier call" in note for note in second.notes)
    assert not any("earlier call" in note for note in first.notes)


def test_a_damaged_file_of_measurements_is_measured_anew(set_times):
    set_times(FASTEST_FUSED)
    table_path().with_name("optimize.json").write_text('{"a": [1], "b"')
    assert optimize(network(), None, device="cpu").speedup == 2.0


@pytest.mark.parametrize("fault", ["no folder", "a folder", "a device", "no home folder"])
def test_measurements_that_cannot_be_cached_cost_one_note(set_times, tmp_path, monkeypatch, capsys, fault):
    set_times(FASTEST_FUSED)
    cache = tmp_path / "cache"
    monkeypatch.setenv("CONVSWAP_TUNING", str(cache / "tuning.txt"))
    if fault == "no folder":
        cache.write_text("")
    elif fault == "no home folder":
        monkeypatch.setattr("convswap.optimizing.measurement_cache.table_path", no_home_folder)
    else:
        cache.mkdir()
        (cache / "optimize.json").mkdir() if fault == "a folder" else os.mkfifo(cache / "optimize.json")
    assert optimize(network(), None, device="cpu").speedup == 2.0
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1
    assert notes[0].startswith("convswap: the measurements are not cached for later calls: ")


def no_home_folder():
    raise ConvswapError("there is no home folder")


def test_measurements_with_a_byte_order_mark_are_found(set_times):
    set_times(FASTEST_FUSED)
    optimize(network(), None, device="cpu")
    file = table_path().with_name("optimize.json")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert any("earlier call" in note for note in optimize(network(), None, device="cpu").notes)


def test_one_batch_may_be_given_for_several(set_times):
    set_times(FASTEST_FUSED)
    assert optimize(network(), None, device="cpu", batches=4).options["batches"] == [4]


@pytest.mark.parametrize("target", ["pipe", "/proc/o.onnx", "model.onnx"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, target):
    onnx.save(network(), tmp_path / "model.onnx")
    os.mkfifo(tmp_path / "pipe")
    progress_texts = []
    with pytest.raises(ConvswapError, match="cannot write"):
        optimize(tmp_path / "model.onnx", tmp_path / target, device="cpu", progress=progress_texts.append)
    assert progress_texts == []


def test_a_model_that_cannot_be_written_in_the_end_is_an_error_after_the_results(
    set_times, tmp_path, monkeypatch, capsys
):
    set_times(FASTEST_FUSED)
    onnx.save(network(), tmp_path / "model.onnx")
    monkeypatch.setattr("convswap.graph.model_file.to_proto", full_disk)
    output = tmp_path / "o.onnx"
    assert main(["optimize", str(tmp_path / "model.onnx"), "-o", str(output), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert "stem" in captured.out and "To use" not in captured.out
    assert captured.err.splitlines()[-1] == f"convswap: cannot write '{output}': No space left on device"
    with pytest.raises(ConvswapError, match="No space left"):
        optimize(network(), output, device="cpu")


def full_disk(*_written):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_precision_match_selects_a_precision_as_accurate_as_the_default_for_each_conv(monkeypatch):
    errors = {
        "stem": {"default": 6e-8, "tf32": 3e-4, "ieee": 9e-8},
        "block": {"default": 3e-4, "tf32": 3e-4},
        "last": {"default": 1e-8, "tf32": 3e-4, "ieee": 5e-6},
    }
    monkeypatch.setattr(measuring, "conv_errors", lambda segment, inputs, device: errors[segment.name])
    card = Device("cuda", "asked for", {"name": "a card"})
    prepared = preparation.prepare(network(), OptimizeOptions(), CPU)
    shared = measuring.MeasurementContext(replace(prepared, device=card), _NoInputs(), _EmptyCache())
    selected = {segment.name: measuring._precision(segment, (), shared)[0] for segment in prepared.segments}
    assert selected == {"stem": "ieee", "block": "tf32", "last": None}


class _NoInputs:
    def of(self, segment):
        return [{}]


class _EmptyCache:
    def get(self, key):
        return None

    def add(self, key, measured):
        pass


@pytest.mark.parametrize("name", ["stem", "block", "last"])
def test_every_stage_of_a_segment_computes_the_same(name):
    prepared = preparation.prepare(network(), OptimizeOptions(), CPU)
    (segment,) = (each for each in prepared.segments if each.name == name)
    random = np.random.default_rng(3)
    shape = {"stem": (2, 3, 12, 12), "block": (2, 8, 12, 12), "last": (2, 8, 12, 12)}[name]
    feeds = {
        input_name: random.standard_normal(shape).astype(np.float32)
        for input_name in segment.layer.input_names
    }
    shapes = {input_name: values.shape for input_name, values in feeds.items()}
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
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[1, 4])
    jsonschema.validate(json.loads(json.dumps(result.to_json(), allow_nan=False)), SCHEMA)
    assert [node.node for node in result.nodes] == ["stem", "block", "last"]
    assert all(set(node.default_ms) == {1, 4} for node in result.nodes)


@pytest.mark.alone
@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["match", "tf32"])
def test_on_a_card_the_optimized_model_is_no_slower_and_as_accurate(tmp_path, precision):
    result = optimize(
        "ece408-2018sp", tmp_path / "faster.onnx", device="cuda", batches=[64], precision=precision
    )
    jsonschema.validate(json.loads(json.dumps(result.to_json(), allow_nan=False)), SCHEMA)
    assert result.written is not None
    assert result.speedup > 1
    if precision == "match":
        for node in result.nodes:
            assert node.errors[node.precision] <= max(1.05 * node.errors["default"], 1e-6)


def test_the_command_writes_the_file_the_json_and_the_page_and_says_how_to_use_it(
    set_times, tmp_path, capsys
):
    set_times(FASTEST_FUSED)
    onnx.save(network(), tmp_path / "model.onnx")
    files = {name: tmp_path / name for name in ("faster.onnx", "found.json", "found.html")}
    arguments = ["-o", files["faster.onnx"], "--json", files["found.json"], "--html", files["found.html"]]
    status = main(["optimize", str(tmp_path / "model.onnx"), *map(str, arguments), "--device", "cpu"])
    output = capsys.readouterr().out
    assert (status, all(file.exists() for file in files.values())) == (0, True)
    jsonschema.validate(json.loads(files["found.json"].read_text()), SCHEMA)
    assert "2 of 3 Convs swapped; 2.00x as fast" in output
    assert "convswap.register(options)" in output.splitlines()[-2] + output.splitlines()[-1]
    assert "2.00x" in files["found.html"].read_text()


def test_the_command_exits_1_where_nothing_is_faster(set_times, tmp_path, capsys):
    set_times({name: {DEFAULT_VARIANT: 1.0} for name in FASTEST_FUSED})
    onnx.save(network(), tmp_path / "model.onnx")
    html = tmp_path / "found.html"
    arguments = ["-o", str(tmp_path / "faster.onnx"), "--device", "cpu", "--html", str(html)]
    assert main(["optimize", str(tmp_path / "model.onnx"), *arguments]) == 1
    assert "Nothing gains" in capsys.readouterr().out
    assert "Nothing gains" in html.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "1,1"], "batches were given as [1, 1]"),
        (["--batch", "x"], "--batch 'x'"),
        (["--batch", "1,0"], "batch must be at least 1, but 0 was given"),
        (["--precision", "float16"], "unknown precision 'float16'"),
        (["--mean", "1"], "--mean has no meaning without --inputs"),
        (["--json", "faster.onnx"], "faster.onnx"),
    ],
)
def test_bad_usage_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "model.onnx")
    line = only_line_of_refusal(
        capsys, "optimize", "model.onnx", "-o", "faster.onnx", "--device", "cpu", *arguments
    )
    assert message in line


def test_a_swapped_model_is_refused():
    swapped = convswap.swap(network()).to_proto()
    with pytest.raises(ConvswapError, match="3 Conv swapped already; give the model as it was"):
        optimize(swapped, None, device="cpu")


def test_too_little_memory_is_one_line_before_the_start(monkeypatch, tmp_path, capsys):
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


def test_a_model_with_a_sequence_and_a_default_is_written_with_the_inputs_that_it_has(set_times, tmp_path):
    model = network()
    model.graph.node.append(helper.make_node("ConcatFromSequence", ["parts"], ["more"], axis=0))
    model.graph.node.append(helper.make_node("Mul", ["more", "factor"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2.0]), "factor"))
    element = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None])
    parts = helper.make_value_info("parts", helper.make_sequence_type_proto(element))
    model.graph.input.extend([parts, tensor_info("factor", 1)])
    model.graph.output.append(tensor_info("z", None))
    set_times(FASTEST_FUSED)
    x, part_arrays = np.ones(SHAPES["x"], np.float32), [np.float32([1, 2]), np.float32([3])]
    inputs = {"x": x, "parts": part_arrays, "factor": np.float32([5])}
    result = optimize(model, tmp_path / "faster.onnx", device="cpu", inputs=inputs)
    assert result.answers_agree and result.written is not None
    written = onnx.load(result.written)
    assert [value.name for value in written.graph.input] == ["x", "parts", "factor"]
    assert any(node.domain == "convswap" for node in written.graph.node)
    (z,) = cpu_session(written).run(["z"], {"x": x, "parts": part_arrays})
    np.testing.assert_array_equal(z, np.float32([2, 4, 6]))


def test_a_conv_that_changes_the_outputs_is_not_swapped_and_the_others_are_written(set_times, tmp_path):
    set_times({name: {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 0.5} for name in ("large", "small")})
    model = float16_overflow(second=True)
    result = optimize(model, tmp_path / "faster.onnx", device="cpu", inputs=FLOAT16_FEEDS)
    rows = {node.node: node for node in result.nodes}
    assert (rows["large"].taken, rows["small"].taken) == ("default", "swapped")
    assert rows["large"].why == (
        "it changes the model's outputs: relative L2 error not finite (tolerance 0.01)"
    )
    assert result.answers_agree and FLOAT16_ON_CPU in result.notes
    y, z = cpu_session(onnx.load(result.written)).run(None, FLOAT16_FEEDS)
    np.testing.assert_allclose(y, 81, rtol=1e-3)
    np.testing.assert_allclose(z, 405, rtol=1e-3)
    jsonschema.validate(result.to_json(), SCHEMA)


def test_where_every_faster_conv_changes_the_outputs_none_is_swapped(set_times, tmp_path):
    set_times({"large": {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 0.5}})
    result = optimize(float16_overflow(), tmp_path / "faster.onnx", device="cpu", inputs=FLOAT16_FEEDS)
    assert result.written is None and {node.taken for node in result.nodes} == {"default"}
    assert (
        next(iter(optimization_verdict(result)))
        == "No Conv is swapped: 1 of 1 change the outputs, and no other is faster."
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outputs_without_a_finite_element_are_no_reason_to_write(value, set_times, tmp_path, capsys):
    set_times(FASTEST_FUSED)
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
    report = json.loads(json_file.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    assert report["relative_l2_error"]["between"] is None and report["written"] is None
    assert not report["answers_agree"] and not (tmp_path / "faster.onnx").exists()
    output = capsys.readouterr().out
    assert "NOTHING COULD BE COMPARED: no output has an element that is finite, on either side." in output
    assert "outputs agree" not in output + page.read_text(encoding="utf-8")


def test_a_model_whose_outputs_are_empty_is_written_by_what_its_convs_give(set_times, tmp_path):
    set_times(FASTEST_FUSED)
    model = network()
    # Above every value, as in a detector without detections.
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
    result = optimize(model, tmp_path / "faster.onnx", device="cpu")
    assert result.answers_agree and result.written is not None
    assert result.to_json()["relative_l2_error"]["between"] is None
    assert any("Every output is empty" in line for line in optimization_verdict(result))
