"""Comparing and planning hold the weights once; a comparison checks first whether memory suffices."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from comparisons import saved
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.graph.external_weights import SplitModel, is_external_weight, split_model
from convswap.graph.model_file import load_model, model_from_proto
from convswap.planning.problems import PlanOptions, conv_problems
from convswap.runtime import memory
from convswap.runtime.device import Device
from onnx import TensorProto, helper, numpy_helper
from swap_models import tensor_info, text_model
from verdict_models import checked_model, constant, normal

compare = importlib.import_module("convswap.comparison.compare").compare
CPU = Device("cpu", "asked for")
planning = importlib.import_module("convswap.comparison.preparation")


def with_large_weights() -> onnx.ModelProto:
    """Return a Conv with weights of 1 MiB and a matrix of 576 rows; both count as large weights."""
    nodes = """
      [conv] c = Conv(x, w, b)
      g = GlobalAveragePool(c)
      f = Flatten(g)
      m = MatMul(f, matrix)
      y = Reshape(m, shape)"""
    return text_model(
        nodes,
        *(constant("w", normal(1, 512, 64, 3, 3)), constant("b", normal(2, 512))),
        *(constant("matrix", normal(3, 512, 4096)), constant("shape", np.array([1, -1]))),
        inputs="float[1, 64, 8, 8] x",
        outputs="float[1, 4096] y",
    )


@pytest.mark.parametrize("external", [False, True])
def test_large_weights_are_split_from_the_model_and_joined_again(external, tmp_path):
    original = with_large_weights()
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if external else {}
    path = saved(original, tmp_path, **options)
    model = load_model(path)
    small, weights = split_model(model)
    assert set(weights) == {"w", "matrix"} and len(small.SerializeToString()) < 10_000
    assert [is_external_weight(tensor) for tensor in small.graph.initializer] == [True, False, True, False]
    # All other constants are in the message, wherever the file stores them.
    shape = next(tensor for tensor in small.graph.initializer if tensor.name == "shape")
    assert numpy_helper.to_array(shape).tolist() == [1, -1]
    if external:
        assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)
    joined = SplitModel(small, weights).to_model()
    for tensor in with_large_weights().graph.initializer:
        value = joined.graph.initializers[tensor.name].const_value.numpy()
        np.testing.assert_array_equal(value, numpy_helper.to_array(tensor))
    assert np.shares_memory(joined.graph.initializers["w"].const_value.numpy(), weights["w"])


def test_weights_in_a_file_are_mapped_where_they_lie_well_and_copied_where_not(tmp_path):
    values = normal(0, 512, 1024)
    for offset, is_mapped in ((4096, True), (4, False)):
        (tmp_path / "w.bin").write_bytes(bytes(offset) + values.tobytes())
        tensor = TensorProto(name="m", data_type=TensorProto.FLOAT, dims=values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", offset), ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        kinds = {"inputs": "float[1, 512] x", "outputs": "float[1, 1024] y"}
        model = text_model("y = MatMul(x, m)", tensor, **kinds)
        onnx.save(model, tmp_path / "m.onnx")
        _, weights = split_model(load_model(tmp_path / "m.onnx"))
        np.testing.assert_array_equal(weights["m"], values)
        assert weights["m"].ctypes.data % 64 == 0
        assert weights["m"].flags.writeable is not is_mapped


def test_weights_that_a_run_may_be_given_stay_in_the_model():
    model = with_large_weights()
    model.graph.input.append(tensor_info("matrix", 512, 4096))
    _, weights = split_model(model_from_proto(model))
    assert set(weights) == {"w"}


@pytest.mark.parametrize("fuse", [False, True])
def test_model_with_external_weights_is_compared_with_its_layers(fuse, tmp_path):
    result = compare(saved(with_large_weights(), tmp_path), device="cpu", fuse=fuse)
    assert result.within_tolerance and result.convswap.relative_l2_error < 1e-5
    (layer,) = result.layers
    assert all(0 < error < 1e-5 for error in layer.relative_l2_error.values())
    assert result.notes == compare(with_large_weights(), device="cpu", fuse=fuse).notes


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_large_weights_are_folded_and_found_in_functions(fuse, kind, tmp_path):
    """A Conv in a function, with the batch normalisation folded into the weights that the call passes."""
    functions = """
      <domain: "local", opset_import: ["": 20]>
      Block (a, v, s, b, m, d) => (o) {
        [conv] c = Conv <pads = [1, 1, 1, 1]> (a, v)
        n = BatchNormalization(c, s, b, m, d)
        o = Relu(n)
      }"""
    norms = {name: normal(seed, 512).astype(kind) for seed, name in enumerate("sbmd")}
    norms["d"] = np.abs(norms["d"]) + kind(1)
    text = {np.float32: "float", np.float16: "float16"}[kind]
    model = text_model(
        "[block] y = local.Block(x, w, s, b, m, d)",
        constant("w", (normal(7, 512, 128, 3, 3) / 34).astype(kind)),
        *(constant(name, values) for name, values in norms.items()),
        inputs=f"{text}[1, 128, 6, 6] x",
        outputs=f"{text}[1, 512, 6, 6] y",
        functions=functions,
    )
    path = saved(model, tmp_path, save_as_external_data=True, location="w.bin")
    result = compare(path, device="cpu", fuse=fuse)
    assert result.within_tolerance
    assert [layer.fused for layer in result.layers] == [("BatchNormalization", "Relu")[: 1 + fuse]]
    (layer,) = result.layers
    assert all(0 < error < result.tolerance for error in layer.relative_l2_error.values())


def test_one_side_at_a_time_where_both_do_not_fit(monkeypatch):
    # Five times the Conv's weights and once the other weights are 14.3 MB, and the other side needs 9.6 MB
    # more.
    # The largest weight takes 16.8 MB in float64. A comparison may use nine tenths of the free memory.
    monkeypatch.setattr(planning, "free_memory", lambda: 20_000_000)
    steps: list[str] = []
    result = compare(with_large_weights(), device="cpu", time_layers=False, progress=steps.append)
    assert result.within_tolerance
    assert [step for step in steps if step.startswith("loading")] == [
        "loading the default side",
        "loading the convswap side",
    ]
    (note,) = (note for note in result.notes if "one after the other, not in turn" in note)
    assert note.startswith("both sides at once would take about 24 MB of memory, and 20 MB are free")
    monkeypatch.setattr(planning, "free_memory", lambda: 30_000_000)
    assert not any("one after" in note for note in compare(with_large_weights(), device="cpu").notes)
    monkeypatch.setattr(planning, "free_memory", lambda: None)
    assert compare(with_large_weights(), device="cpu", time_layers=False).within_tolerance


@pytest.mark.parametrize("free", [18_000_000, 1_000])
def test_too_little_memory_is_one_line_before_the_start(free, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(planning, "free_memory", lambda: free)
    assert main(["compare", saved(with_large_weights(), tmp_path), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    (line,) = (line for line in captured.err.splitlines() if "memory" in line)
    assert line.startswith("convswap: the memory does not suffice: comparing takes about")
    assert "loading" not in captured.err and captured.out == ""


def test_batch_whose_values_do_not_fit_is_refused(monkeypatch):
    model = text_model(
        "[conv] y = Conv(x, w)",
        constant("w", normal(0, 4, 3, 3, 3)),
        inputs="float[n, 3, 32, 32] x",
        outputs="float[n, 4, 30, 30] y",
    )
    monkeypatch.setattr(planning, "free_memory", lambda: 10_000_000)
    assert compare(model, device="cpu", batch=8, time_layers=False).within_tolerance
    with pytest.raises(ConvswapError, match=r"memory does not suffice: .* batches of 1000"):
        compare(model, device="cpu", batch=1000)


def test_free_memory_is_what_the_group_of_a_container_leaves(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.free_memory() == 8_192_000
    (tmp_path / "memory.max").write_text("6000000\n")
    (tmp_path / "memory.current").write_text("5000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 2000000\n")
    assert memory.free_memory() == 3_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory() == 8_192_000
    (tmp_path / "meminfo").unlink()
    assert memory.free_memory() is None


@pytest.mark.parametrize("fuse", [False, True])
def test_model_with_external_weights_is_explained_as_with_its_weights(fuse, tmp_path):
    options = PlanOptions(batch=None, precision="ieee", algorithm="auto", fuse=fuse)
    in_memory = conv_problems(with_large_weights(), options, CPU)
    from_file = conv_problems(saved(with_large_weights(), tmp_path), options, CPU)
    assert [conv.problem.text for conv in in_memory.convs] == [conv.problem.text for conv in from_file.convs]
    assert len(in_memory.convs) == 1


def with_one_large_matrix(columns: int) -> onnx.ModelProto:
    nodes = "[conv] c = Conv(x, w)  g = GlobalAveragePool(c)  f = Flatten(g)  y = MatMul(f, matrix)"
    tensors = [constant("w", normal(1, 512, 3, 3, 3)), constant("matrix", normal(3, 512, columns))]
    return text_model(nodes, *tensors, inputs="float[1, 3, 8, 8] x", outputs=f"float[1, {columns}] y")


def with_normalised_convs(channels: int) -> onnx.ModelProto:
    """Return eight Convs with weights in Constants; folding the batch normalisations creates new weights."""
    values = np.full([channels, channels, 1, 1], 0.01, np.float32)
    nodes, last = [], "x"
    for number in range(8):
        nodes += [
            helper.make_node("Constant", [], [f"w{number}"], value=constant("", values)),
            helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], name=f"conv{number}"),
            helper.make_node("BatchNormalization", [f"c{number}", *"sbmv"], [f"n{number}"]),
            helper.make_node("Relu", [f"n{number}"], [f"r{number}"]),
        ]
        last = f"r{number}"
    nodes.append(helper.make_node("GlobalMaxPool", [last], ["y"]))
    inputs, outputs = [tensor_info("x", 1, channels, 2, 2)], [tensor_info("y", 1, channels, 1, 1)]
    norms = [constant(name, np.full(channels, 1.5, np.float32)) for name in "sbmv"]
    return checked_model(nodes, inputs, outputs, norms)


# Runs a command on a small model, for the peak of the interpreter and its libraries, and then on a large one.
COMMAND = """
import sys
from convswap.cli.main import main

*command, small, large = sys.argv[1:]
for path in (small, large):
    status = main([*command, path])
    # 1 where nothing gains.
    assert status == 0 or (status == 1 and command[0] == "optimize"), status
    print(*("peak " + line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "external", "times"),
    [
        ("compare --no-layers", False, 3.5),
        ("compare --no-layers", True, 3.5),
        ("optimize -o out.onnx", False, 3.5),
        # The file, its message, and the weights taken out of it. External data are not read at all.
        ("explain", False, 3.5),
        ("explain", True, 0.5),
    ],
)
def test_peak_is_at_most_a_few_times_the_weights(command, external, times, tmp_path):
    weights, paths = 0, []
    for columns in (1_000, 24_000):
        (tmp_path / str(columns)).mkdir()
        model = with_one_large_matrix(columns)
        # Saving moves the external data out of the model.
        weights = model.ByteSize()
        options = {"save_as_external_data": True, "location": "w.bin"} if external else {}
        paths.append(saved(model, tmp_path / str(columns), **options))
    output = output_of_program([COMMAND, *command.split(), "--device", "cpu", *paths], tmp_path)
    before, peak = (int(line.split()[1]) for line in output.splitlines() if line.startswith("peak "))
    # KiB.
    assert (peak - before) * 1024 < times * weights


def output_of_program(program: list[str], folder: Path) -> str:
    """Return the output of a Python program; the program's arguments follow it in the list."""
    # Without the Makefile's malloc settings, under which freed memory stays in the process.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment["CONVSWAP_TUNING"] = str(folder / "tuning.txt")
    command = [sys.executable, "-c", *program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=folder)
    return result.stdout


# `optimize` without its timing, so that every Conv is faster. The small model runs first: its peak, that of
# the interpreter and its libraries, is subtracted.
OPTIMIZE = """
import sys
import convswap
from convswap.optimizing import end_to_end, measuring

measuring.variant_times = lambda segment, *_: {None: 1.0, **dict.fromkeys(segment.stages, 0.5)}
end_to_end.end_to_end_times = lambda *_: [2.0, 1.0]
for path in sys.argv[1:]:
    found = convswap.optimize(path, f"{path}.out", device="cpu")
    assert found.written and {node.taken for node in found.nodes} == {"swapped"}, found
    print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.extended
@pytest.mark.slow
def test_peak_of_optimize_is_at_most_five_times_the_weights_where_all_convs_are_faster(tmp_path):
    """The peak is at the creation of a partly swapped session while the original's session exists."""
    weights, paths = 0, []
    for channels in (8, 1_500):
        (tmp_path / str(channels)).mkdir()
        model = with_normalised_convs(channels)
        weights = model.ByteSize()
        paths.append(saved(model, tmp_path / str(channels)))
    before, peak = map(int, output_of_program([OPTIMIZE, *paths], tmp_path).split())
    # KiB.
    assert (peak - before) * 1024 < 5 * weights
