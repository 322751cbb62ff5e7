"""Every command accepts the user's inputs: their shapes are planned, and their values run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import convswap
import numpy as np
import onnx
import pytest
from command_line import only_line_of_refusal, refusal
from comparisons import small_model
from convswap.bench.first_run import first_run
from convswap.bench.first_run_process import main as run_first
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.inputs.user_inputs import InputData
from convswap.optimizing import measuring
from convswap.profiling.profile import profile
from convswap.runtime.device import Device
from onnx import TensorProto, helper, numpy_helper
from op_sessions import cpu_session, onnx_outputs
from PIL import Image
from pretend_collector import on_pretended_card
from swap_models import tensor_info, text_model, weights

CPU = Device("cpu", "asked for")
FIRST_RUN = importlib.import_module("convswap.bench.first_run")
NOTE = "integer input 'size' [4] gets zeros and ones; --inputs gives it real values"


def resized() -> onnx.ModelProto:
    """Return a Conv of 3x3 after a Resize of x [n, 3, 16, 16] to the input `size`."""
    nodes = "r = Resize(x, , , size)  [conv] y = Conv(r, w)"
    return text_model(nodes, weights("w", 4, 3, 3, 3), inputs="float[n, 3, 16, 16] x, int64[4] size")


def example_inputs() -> dict[str, np.ndarray]:
    data = np.random.default_rng(0).standard_normal((2, 3, 16, 16))
    return {"x": data, "size": np.array([2, 3, 10, 12])}


@pytest.fixture
def work_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(resized(), "model.onnx")
    np.savez("inputs.npz", **example_inputs())
    return tmp_path


def test_the_shapes_of_the_inputs_are_planned():
    plan = convswap.explain(resized(), device="cpu", inputs=example_inputs())
    assert plan.batch == 2 and "x=2x3x10x12" in plan.convs[0].problem
    assert not any("zeros and ones" in note for note in plan.notes)
    open_images = small_model(side="s")
    plan = convswap.explain(open_images, device="cpu", inputs={"x": np.zeros((3, 3, 9, 9))})
    assert plan.batch == 3 and "x=3x3x9x9" in plan.convs[0].problem
    assert any("open: what was given is 3x3x9x9" in note for note in plan.notes)
    plan = convswap.explain(open_images, device="cpu", batch=7, inputs={"x": np.zeros((3, 3, 9, 9))})
    assert plan.batch == 7 and "x=7x3x9x9" in plan.convs[0].problem


def test_tune_measures_the_shapes_of_the_inputs(work_folder, table):
    tuning = convswap.tune(resized(), device="cpu", inputs="inputs.npz", runs=1)
    assert "x=2x3x10x12" in tuning.problems[0].problem


def test_warm_plans_the_shapes_and_the_batch_of_the_inputs(monkeypatch):
    warm = importlib.import_module("convswap.planning.warm")
    problems: list[str] = []

    def kernels(plan, card, *, is_here):
        problems.extend(conv.problem.text for conv in plan.convs)
        return [("kernel", 90)]

    monkeypatch.setattr(warm, "_kernels", kernels)
    monkeypatch.setattr(warm, "_compile", lambda *_: 1)
    monkeypatch.setattr(warm._native, "kernel_compiler", lambda: {"why_not": ""})
    warmed = warm.warm(resized(), compute_capabilities=[90], inputs=example_inputs())
    assert warmed.batches == (2,) and ["x=2x3x10x12" in problem for problem in problems] == [True]
    fixed = small_model(batch=3)
    assert warm.warm(fixed, compute_capabilities=[90]).batches == (3,)
    assert warm.warm(small_model(), compute_capabilities=[90]).batches == warm.BATCHES
    assert warm.warm(small_model(), compute_capabilities=[90], batches=[4]).batches == (4,)


def test_compare_and_optimize_run_the_inputs():
    result = convswap.compare(resized(), device="cpu", inputs=example_inputs(), time_layers=False)
    assert result.within_tolerance and (result.images, result.batch, result.dataset) == (2, 2, "given")
    assert not any("zeros and ones" in note for note in result.notes)
    optimized = convswap.optimize(resized(), device="cpu", inputs=example_inputs())
    assert [list(node.default_ms) for node in optimized.nodes] == [[2]]
    assert not any("zeros and ones" in note for note in optimized.notes)


def test_several_samples_of_a_fixed_batch_are_all_compared():
    values = np.random.default_rng(0).standard_normal((5, 3, 12, 12))
    result = convswap.compare(small_model(batch=1), device="cpu", inputs={"x": values}, time_layers=False)
    assert (result.images, result.batch) == (5, 1) and result.within_tolerance


def test_profile_runs_the_inputs(monkeypatch):
    recording = importlib.import_module("convswap.profiling.profile")
    recorded_feeds = {}
    record = recording.record

    def watched(models, feeds, *arguments, **options):
        recorded_feeds.update(feeds)
        return record(models, feeds, *arguments, **options)

    monkeypatch.setattr(recording, "record", watched)
    with on_pretended_card():
        result = profile(resized(), runs=1, inputs=example_inputs())
    assert result.batch == 2 and recorded_feeds["size"].tolist() == [2, 3, 10, 12]
    assert not any("zeros and ones" in note for note in result.notes)
    with (
        on_pretended_card(),
        pytest.raises(ConvswapError, match="data set random and inputs were both given"),
    ):
        profile(resized(), data="random", inputs=example_inputs())
    plain = small_model()
    plain.graph.input.append(tensor_info("size", 4, element_type=TensorProto.INT64))
    with on_pretended_card():
        assert NOTE in profile(plain, runs=1).notes


def test_first_run_uses_the_inputs(monkeypatch, capsys):
    jobs = []

    def run(side, job):
        jobs.append(job)
        assert run_first(json.dumps(job)) == 0
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(FIRST_RUN, "_run_alone", run)
    result = first_run(resized(), device="cpu", processes=1, inputs=example_inputs())
    assert result["batch"] == 2 and result["input_shapes"] == {"x": [2, 3, 16, 16], "size": [4]}
    assert len(jobs) == 4 and result["notes"] == []


def test_made_up_integers_are_noted():
    model = small_model()
    model.graph.input.append(tensor_info("size", 4, element_type=TensorProto.INT64))
    assert NOTE in convswap.compare(model, device="cpu", time_layers=False).notes
    assert NOTE in convswap.explain(model, device="cpu").notes
    assert NOTE in convswap.optimize(model, device="cpu").notes


@pytest.mark.parametrize("command", [["compare"], ["optimize", "-o", "out.onnx"], ["bench", "--first-run"]])
def test_a_model_that_fails_with_made_up_integers_names_the_option(work_folder, capsys, command):
    assert refusal(capsys, *command, "model.onnx", "--device", "cpu").endswith(NOTE)


# Inputs that are not tensors of numbers, or have a default


SEQUENCE, OPTIONAL = "seq(float[])", "optional(float[])"
IMAGE = np.random.default_rng(0).standard_normal((1, 3, 8, 8))
PLANE = np.full((1, 4, 6, 6), 3, np.float32)


def conv_and_nodes(nodes: str, inputs: str = "", domains: str = "", **constants) -> onnx.ModelProto:
    """Return a Conv of x to c, and `nodes` that compute y from c, with additional `inputs`."""
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return text_model(
        f"[conv] c = Conv(x, w)  {nodes}",
        *(weights("w", 4, 3, 3, 3), *initializers),
        inputs=f"float[1, 3, 8, 8] x {inputs and ','} {inputs}",
        domains=domains,
    )


def assert_compare_agrees(model: onnx.ModelProto, inputs, feeds_of_session: dict) -> None:
    """Check that `compare` with `inputs` gives ONNX Runtime's output for `feeds_of_session`."""
    captured = {}
    original = importlib.import_module("convswap.comparison.compare").errors_against_reference

    def watched(comparison, feeds, outputs, report):
        captured.update({side.name: arrays for side, arrays in outputs.items()})
        return original(comparison, feeds, outputs, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("convswap.comparison.compare.errors_against_reference", watched)
        result = convswap.compare(model, device="cpu", inputs=inputs, time_layers=False)
    (expected,) = onnx_outputs(model, {"x": IMAGE.astype(np.float32), **feeds_of_session}, ["y"])
    assert result.within_tolerance and result.swapped == 1
    for side in ("default", "convswap"):
        np.testing.assert_allclose(captured[side]["y"], expected, rtol=1e-4, atol=1e-4)


def sum_of_a_sequence(kind: str = SEQUENCE, name: str = "s") -> onnx.ModelProto:
    get = "" if name == "s" else f"s = OptionalGetElement({name})"
    nodes = f"{get}  t = ConcatFromSequence <axis = 0> (s)  r = ReduceSum(t, axes)  y = Add(c, r)"
    return conv_and_nodes(nodes, f"{kind} {name}", axes=np.array([0]))


@pytest.mark.parametrize(("kind", "name"), [(SEQUENCE, "s"), (f"optional({SEQUENCE})", "o")], ids="so")
def test_sequences_come_from_lists_and_from_files(kind, name, tmp_path):
    elements = [PLANE, 2 * PLANE, np.concatenate([PLANE, PLANE])]
    feeds = {name: elements}
    assert_compare_agrees(sum_of_a_sequence(kind, name), {"x": IMAGE, name: elements}, feeds)
    parts = {f"{name}.{index}": values for index, values in enumerate(elements)}
    assert_compare_agrees(sum_of_a_sequence(kind, name), {"x": IMAGE, **parts}, feeds)
    np.savez(tmp_path / "inputs.npz", x=IMAGE, **parts)
    assert_compare_agrees(sum_of_a_sequence(kind, name), tmp_path / "inputs.npz", feeds)
    plan = convswap.explain(sum_of_a_sequence(kind, name), device="cpu", inputs=tmp_path / "inputs.npz")
    assert len(plan.convs) == 1


def test_a_sequence_may_have_no_elements():
    nodes = "n = SequenceLength(s)  f = Cast <to = 1> (n)  y = Add(c, f)"
    model = conv_and_nodes(nodes, f"{SEQUENCE} s")
    assert_compare_agrees(model, {"x": IMAGE, "s": []}, {"s": []})


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (
            {},
            "input 's' is a sequence, but no elements of it were given; give a list of arrays, or in a file",
        ),
        ({"s": PLANE}, "input 's' is a sequence, but a ndarray was given; give a list of arrays"),
        ({"s.0": PLANE, "s.2": PLANE}, "its elements were given as s.0, s.2; number them from 0 on"),
        ({"s": ["cat"]}, "'s.0' [] takes float32, but <U3 was given"),
        ({"s": [PLANE], "t": PLANE}, "unknown input 't'; known: s, x"),
    ],
    ids=["none", "array", "gap", "type", "unknown"],
)
def test_a_sequence_that_is_none_is_refused_in_one_line(inputs, expected):
    with pytest.raises(ConvswapError) as caught:
        convswap.compare(sum_of_a_sequence(), device="cpu", inputs={"x": IMAGE, **inputs})
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_an_optional_may_be_an_array_or_empty(tmp_path):
    nodes = """
      has = OptionalHasElement(o)
      y = If <
        then_branch = there () => (float[] z) { e = OptionalGetElement(o)  z = Add(c, e) },
        else_branch = absent () => (float[] z) { z = Neg(c) }
      > (has)"""
    model = conv_and_nodes(nodes, f"{OPTIONAL} o")
    assert_compare_agrees(model, {"x": IMAGE, "o": PLANE}, {"o": PLANE})
    assert_compare_agrees(model, {"x": IMAGE, "o": None}, {"o": None})
    np.savez(tmp_path / "inputs.npz", x=IMAGE)
    assert_compare_agrees(model, tmp_path / "inputs.npz", {"o": None})


def test_names_of_the_model_are_no_names_that_are_made_for_it():
    nodes = """
      same = Identity(c)
      e = OptionalGetElement(o)
      t = ConcatFromSequence <axis = 0> (s)
      y = Sum(same, e, t, part)"""
    model = conv_and_nodes(nodes, f"{OPTIONAL} o, {SEQUENCE} s, float[] part")
    # ONNX's text format cannot contain such names.
    names = ("o/Optional", "s/SequenceConstruct", "", "o.value")
    for node, name in zip(model.graph.node[1:], names, strict=True):
        node.name = name
    model.graph.input[-1].name = model.graph.node[-1].input[-1] = "s.0"
    feeds = {"o": PLANE, "s": [2 * PLANE], "s.0": 3 * PLANE}
    assert_compare_agrees(model, {"x": IMAGE, **feeds}, feeds)


def test_an_unknown_name_is_listed_with_those_of_the_model():
    model = conv_and_nodes("e = OptionalGetElement(other)  y = Add(c, e)", f"{OPTIONAL} other")
    with pytest.raises(ConvswapError, match=r"unknown input 'othr'; did you mean 'other'\?"):
        convswap.compare(model, device="cpu", inputs={"x": IMAGE, "othr": PLANE})


def test_strings_are_inputs_of_both_sides(tmp_path):
    numbers = 'keys_strings = ["a", "é"], values_floats = [1.0, 2.0]'
    nodes = f"e = ai.onnx.ml.LabelEncoder <{numbers}> (s)  y = Mul(c, e)"
    model = conv_and_nodes(nodes, "string[1] s", domains="ai.onnx.ml:3")
    strings = np.array(["é"])
    assert_compare_agrees(model, {"x": IMAGE, "s": strings}, {"s": strings})
    np.savez(tmp_path / "inputs.npz", x=IMAGE, s=strings)
    assert_compare_agrees(model, tmp_path / "inputs.npz", {"s": strings})
    with pytest.raises(ConvswapError, match=r"'s' \[1\] takes strings, .* --inputs"):
        convswap.compare(model, device="cpu")


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_types_that_numpy_lacks_are_inputs_of_both_sides(kind, monkeypatch, capsys, tmp_path):
    number = TensorProto.DataType.Value(kind)
    model = conv_and_nodes("e = Cast <to = 1> (s)  y = Mul(c, e)", f"{kind.lower()}[1, 4, 1, 1] s")
    model.opset_import[0].version = 21
    values = np.array([1, 2, 3, 5]).reshape(1, 4, 1, 1)
    folded = conv_and_nodes("y = Mul(c, e)", e=values.astype(np.float32))
    inputs = {"x": IMAGE, "s": values}
    result = convswap.compare(model, device="cpu", inputs=inputs)
    same = convswap.compare(folded, device="cpu", inputs={"x": IMAGE})
    assert result.within_tolerance and same.within_tolerance
    np.testing.assert_allclose(result.default.max_abs_error, same.default.max_abs_error, rtol=0.5, atol=1e-6)
    assert convswap.compare(model, device="cpu", time_layers=False).within_tolerance
    if kind != "FLOAT8E5M2":  # NumPy cannot read its own file of this type.
        # The file does not store the element type.
        np.savez(tmp_path / "own.npz", x=IMAGE, s=values.astype(helper.tensor_dtype_to_np_dtype(number)))
        from_file = convswap.compare(model, device="cpu", inputs=tmp_path / "own.npz", time_layers=False)
        assert from_file.default.max_abs_error == result.default.max_abs_error
    # A first run gets its inputs through a file, in a separate process.
    monkeypatch.setattr(FIRST_RUN, "_run_alone", lambda _, job: run_job(job, capsys))
    first_run(model, device="cpu", processes=1, inputs=inputs)


def run_job(job, capsys):
    assert run_first(json.dumps(job)) == 0
    return json.loads(capsys.readouterr().out)


def with_default() -> onnx.ModelProto:
    """Return a Conv times k, whose default is 2."""
    return conv_and_nodes("y = Mul(c, k)", "float[1] k", k=np.array([2], np.float32))


@pytest.mark.parametrize("fuse", [False, True])
def test_an_input_with_a_default_has_the_given_value_or_its_default(fuse):
    model = with_default()
    before = model.SerializeToString()
    assert_compare_agrees(model, {"x": IMAGE, "k": np.array([5.0], np.float32)}, {"k": np.float32([5])})
    assert_compare_agrees(model, {"x": IMAGE}, {})
    assert model.SerializeToString() == before
    # A default is not folded into weights.
    swapped = convswap.swap(model, fuse=fuse).to_proto()
    session = cpu_session(swapped)
    x = IMAGE.astype(np.float32)
    (two,), (five,) = (session.run(["y"], {"x": x, "k": np.float32([k])}) for k in (2, 5))
    np.testing.assert_allclose(five, two * 2.5, rtol=1e-5)


def test_a_default_that_cannot_be_changed_or_has_another_shape_is_refused():
    inputs = {"x": IMAGE, "k": np.float32([5])}
    with pytest.raises(ConvswapError, match=r"'k' \[1\] was given an array of shape \[2\]"):
        convswap.compare(with_default(), device="cpu", inputs={**inputs, "k": np.float32([5, 6])})
    model = with_default()
    model.ir_version = 3
    with pytest.raises(ConvswapError, match="'k' was given a value, but the model, of IR version 3, has one"):
        convswap.compare(model, device="cpu", inputs=inputs)


def test_sparse_initializers_count_in_a_comparison(monkeypatch):
    model = conv_and_nodes("y = Add(c, k)")
    sparse = model.graph.sparse_initializer.add(dims=[1, 4, 1, 1])
    sparse.values.CopyFrom(numpy_helper.from_array(np.float32([7, 9]), "k"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 3]), "k_indices"))
    assert_compare_agrees(model, {"x": IMAGE}, {})
    # `optimize` compares outputs only if a Conv is faster.
    monkeypatch.setattr(
        measuring, "variant_times", lambda segment, *_: {None: 1.0, **dict.fromkeys(segment.stages, 0.5)}
    )
    assert convswap.optimize(model, device="cpu", inputs={"x": IMAGE}).answers_agree
    # An override session loads the user's model unchanged.
    session = convswap.override_session(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": IMAGE.astype(np.float32)}
    expected = onnx_outputs(model, feeds)[0]
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-4)


# The command line


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "model.onnx", "--no-layers"],
        ["optimize", "model.onnx", "-o", "out.onnx"],
        ["explain", "model.onnx"],
        ["tune", "model.onnx", "--runs", "1"],
        ["bench", "--first-run", "model.onnx"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_accepts_inputs(work_folder, command, monkeypatch, table):
    monkeypatch.setattr(FIRST_RUN, "_run_alone", lambda *_: {"session_ms": 1.0, "run_ms": 1.0})
    status = main([*command, "--device", "cpu", "--inputs", "inputs.npz"])
    # The exit status depends on whether a Conv is faster on this machine.
    assert status in ((0, 1) if command[0] == "optimize" else (0,))


def test_images_of_a_folder_are_compared(work_folder):
    Path("images").mkdir()
    for number in range(3):
        Image.new("RGB", (20, 30), (number, 99, 3)).save(f"images/{number}.png")
    onnx.save(small_model(), "small.onnx")
    arguments = ["--inputs", "images", "--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"]
    common = ["small.onnx", "--device", "cpu", "--no-layers", "--json", "found.json"]
    assert main(["compare", *common, *arguments]) == 0
    report = json.loads(Path("found.json").read_text())
    assert (report["images"], report["dataset"]) == (3, "given")
    with_inputs = InputData("images", mean=0.5)
    assert convswap.compare(small_model(), device="cpu", inputs=with_inputs, time_layers=False).images == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--inputs", "nowhere.npz"], "cannot read the inputs 'nowhere.npz': No such file or directory"),
        (["--mean", "0.5"], "--mean has no meaning without --inputs and a folder of images"),
        (["--inputs", "inputs.npz", "--std", "0.2"], "std is of images, but 'inputs.npz' has arrays"),
        (["--inputs", "images", "--mean", "a,b"], "--mean 'a,b': expected numbers with commas between"),
        (["--inputs", "model.onnx"], "it is no .npz file"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(work_folder, capsys, options, expected):
    assert expected in only_line_of_refusal(capsys, "explain", "model.onnx", "--device", "cpu", *options)


@pytest.mark.parametrize("option", [["--inputs", "inputs.npz"], ["--mean", "1"], ["--scale", "2"]], ids=str)
def test_a_suite_accepts_no_inputs(work_folder, capsys, option):
    assert f"{option[0]} has no meaning beside a suite" in refusal(capsys, "bench", "course", *option)
