"""The study of AlexNet splits a run into the parts that the course asks for, on both sides."""

from __future__ import annotations

import importlib.util
import json
import sys
from unittest import mock

import onnx
import pytest
from command_line import refusal
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.profiling import recording
from convswap.profiling.records import KERNEL, MEMCPY, MEMSET, Activity, AttributedActivity, NodeRun
from convswap.runtime.device import Device
from convswap.tutorial.study import study as module
from convswap.tutorial.study.report import draw_study, print_study
from convswap.tutorial.study.study import BATCHES, PARTS, Study, StudyRow, part_of, study
from pretend_collector import PretendCollector, on_pretended_card
from printed import printed
from swap_models import text_model, weights

CPU = Device("cpu", "asked for")


def small_alexnet() -> onnx.ModelProto:
    """Return a model with one layer of each kind in AlexNet."""
    nodes = """
      [conv1] a = Conv(x, w)
      [relu1] b = Relu(a)
      [lrn1] c = LRN <size = 5> (b)
      [pool1] d = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (c)
      [flatten1] e = Flatten(d)
      [fc1] y = Gemm(e, v)"""
    tensors = [weights("w", 8, 3, 5, 5), weights("v", 8 * 13 * 13, 10)]
    return text_model(nodes, *tensors, inputs="float[n, 3, 32, 32] x")


def pretended_study(collector: PretendCollector | None = None, **options) -> Study:
    with on_pretended_card(collector), mock.patch.object(module, "export_network", lambda _: small_alexnet()):
        return study(**{"batches": (1, 2, 4), "runs": 3, **options})


def attributed(op: str | None, name: str = "kernel", kind: str = KERNEL) -> AttributedActivity:
    node = None if op is None else NodeRun("node", op, 0, 1)
    return AttributedActivity(Activity(kind, name, 0, 1, 1), None, node)


@pytest.mark.parametrize(
    ("activity", "part"),
    [
        (attributed("Conv"), "convolution"),
        (attributed("FusedConv"), "convolution"),
        (attributed("Conv", "[CUDA memset]", MEMSET), "convolution"),
        (attributed("Gemm"), "fully connected"),
        (attributed("MatMul"), "fully connected"),
        (attributed("MaxPool"), "max-pool"),
        (attributed("LRN"), "other"),
        (attributed("Relu"), "other"),
        (attributed(None, "[CUDA memcpy HtoD]", MEMCPY), "copy in"),
        (attributed(None, "[CUDA memcpy DtoH]", MEMCPY), "copy out"),
        (attributed(None), "other"),
        (attributed("MemcpyFromHost", "[CUDA memcpy HtoD]", MEMCPY), "other"),
    ],
)
def test_each_kernel_and_copy_counts_for_one_part(activity, part):
    assert part_of(activity) == part


def test_there_is_a_row_for_each_batch_and_side_whose_parts_are_its_time():
    result = pretended_study()
    assert [(row.batch, row.side) for row in result.rows] == [
        (batch, side) for batch in (1, 2, 4) for side in ("default", "convswap")
    ]
    for row in result.rows:
        assert tuple(row.parts) == PARTS
        assert row.runs == 3 and not row.failure
        assert row.session_ms > 0 and row.first_run_ms > 0
        assert row.set_up_ms == row.session_ms + row.first_run_ms
        assert row.total_ms == sum(row.parts.values())


def test_parts_follow_the_nodes():
    """With one pretended kernel per clock tick, a batch this large has kernels in every part of AlexNet."""
    (default, ours) = pretended_study(batches=(64,), runs=5).rows
    for row in (default, ours):
        for part in ("convolution", "fully connected", "max-pool", "other"):
            assert row.parts[part] > 0, (row.side, part)
        assert row.parts["copy in"] == row.parts["copy out"] == 0


@pytest.mark.extended
@pytest.mark.parametrize(
    "message",
    [
        "Failed to allocate memory for requested buffer of size 123",
        "CUDA failure 2: out of memory ; GPU=0",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "std::bad_alloc",
    ],
)
def test_a_batch_for_which_memory_is_short_gets_a_row_that_says_so_and_the_study_goes_on(
    monkeypatch, message
):
    really = recording.record

    def record(models, feeds, *arguments, **options):
        (side,) = models
        if len(feeds["x"]) == 2 and side.name == "default":
            raise ConvswapError(f"ONNX Runtime cannot run the model: {message}")
        return really(models, feeds, *arguments, **options)

    monkeypatch.setattr(module, "record", record)
    result = pretended_study(batches=(2, 4), runs=1)
    failures = {(row.batch, row.side): row.failure for row in result.rows}
    assert failures.pop((2, "default")) == "out of memory"
    assert set(failures.values()) == {""}
    assert [row.batch for row in result.of_side("default")] == [4]
    assert "Note: batch 2, default: out of memory." in printed(print_study, result)
    written = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert written["rows"][0]["convolution_ms"] is None and written["rows"][0]["failure"] == "out of memory"
    assert written["rows"][1]["convolution_ms"] is not None


@pytest.mark.extended
def test_a_host_without_memory_for_the_images_is_a_row_too(monkeypatch):
    really = module.random_feeds

    def feeds(inputs, batch, seed):
        if batch == 4:
            raise MemoryError("Unable to allocate 600 GiB")
        return really(inputs, batch, seed)

    monkeypatch.setattr(module, "random_feeds", feeds)
    assert [row.failure for row in pretended_study().rows] == [
        "",
        "",
        "",
        "",
        *["the host is out of memory"] * 2,
    ]


def test_any_other_failure_ends_the_study(monkeypatch):
    def record(*_arguments, **_options):
        raise ConvswapError("ONNX Runtime cannot run the model: it is broken")

    monkeypatch.setattr(module, "record", record)
    with pytest.raises(ConvswapError, match="it is broken"):
        pretended_study()


def example() -> Study:
    rows = [
        StudyRow(
            batch,
            side,
            dict(zip(PARTS, (0.1 * batch, scale * batch, 0.3, 0.05 * batch, 0.2, 0.01), strict=True)),
            run_ms=2.0 * batch,
            session_ms=100.0,
            first_run_ms=20.0,
            runs=20,
        )
        for batch in BATCHES
        for side, scale in (("default", 0.4), ("convswap", 0.2))
    ]
    rows[-2] = StudyRow(1024, "default", {}, failure="out of memory")
    return Study(CPU, "tf32", "auto", False, {"onnxruntime": "1.31.1", "cupti": "13.0.1"}, tuple(rows))


def test_the_table_fits_120_columns_and_names_every_part():
    text = printed(print_study, example())
    assert max(map(len, text.splitlines())) <= 120
    header = next(line for line in text.splitlines() if "batch" in line and "side" in line)
    for part in PARTS:
        assert part in header
    for heading in ("card", "run", "set-up"):
        assert heading in header
    row = next(line for line in text.splitlines() if line.split()[:2] == ["512", "default"])
    assert row.split()[2:] == ["51.2", "205", "0.300", "25.6", "0.200", "0.0100", "282", "1,024", "120"]


def test_the_plots_show_both_sides_and_every_part():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, so nothing can be drawn")
    figure = draw_study(example())
    total, distribution = figure.axes
    lines = {line.get_label(): line for line in total.lines}
    assert list(lines) == ["default", "convswap"]
    assert list(lines["default"].get_xdata()) == list(BATCHES[:-1])
    assert list(lines["convswap"].get_ydata()) == pytest.approx(
        [row.total_ms for row in example().of_side("convswap")]
    )
    assert (total.get_xscale(), total.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in distribution.get_legend().get_texts()] == list(PARTS)
    bars = distribution.patches
    assert len(bars) == len(PARTS) * (len(BATCHES) * 2 - 1)
    height_at: dict[float, float] = {}
    for bar in bars:
        height_at[bar.get_x()] = height_at.get(bar.get_x(), 0) + bar.get_height()
    assert list(height_at.values()) == pytest.approx([100] * len(height_at))
    assert len(height_at) == len(BATCHES) * 2 - 1


def test_a_study_without_any_times_has_no_plots():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, so nothing can be drawn")
    rows = (StudyRow(1, "default", {}, failure="out of memory"),)
    with pytest.raises(ConvswapError, match="nothing to draw"):
        draw_study(Study(CPU, "tf32", "auto", False, {}, rows))


def test_a_missing_matplotlib_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConvswapError, match="pip install matplotlib"):
        draw_study(example())


@pytest.fixture
def in_a_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "export_network", lambda name: small_alexnet())
    monkeypatch.chdir(tmp_path)
    with on_pretended_card():
        yield tmp_path


def test_both_sides_of_a_batch_are_recorded_the_same_way():
    collector = PretendCollector()
    pretended_study(batches=[1, 3], runs=1, collector=collector)
    # The first session of each side loads libraries. Then the default side's kernels decide for both sides.
    assert collector.prepared_for == [None, None, None, True, None, True]


def test_the_command_writes_table_json_and_plots(in_a_folder, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, so nothing can be drawn")
    assert main(["study", "alexnet", "--batches", "1,3", "--runs", "2", "--json", "rows.json"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "alexnet-study.png"
    assert "convswap: batch 3, default" in captured.err
    written = json.loads((in_a_folder / "rows.json").read_text())
    assert [row["batch"] for row in written["rows"]] == [1, 1, 3, 3]
    assert set(written["rows"][0]) == {
        "batch",
        "side",
        "copy_in_ms",
        "convolution_ms",
        "fully_connected_ms",
        "max_pool_ms",
        "other_ms",
        "copy_out_ms",
        "total_ms",
        "run_ms",
        "set_up_ms",
        "session_ms",
        "first_run_ms",
        "runs",
        "long_kernels",
        "failure",
    }
    assert {row["long_kernels"] for row in written["rows"]} == {True}
    assert (in_a_folder / "alexnet-study.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["vgg16"], "unknown study 'vgg16'"),
        (["alexnet", "--batches", "1,two"], "--batches '1,two': expected whole numbers"),
        (["alexnet", "--batches", "0"], "batch must be at least 1, but 0 was given"),
        (["alexnet", "--runs", "0"], "runs must be at least 1"),
        (["alexnet", "--precision", "tf23"], "did you mean 'tf32'?"),
        (["alexnet", "--algorithm", "naiv"], "unknown algorithm"),
        (["alexnet", "-o", "plots.pdf"], "the plots are a PNG"),
        (["alexnet", "-o", "none/plots.png"], "there is no folder 'none'"),
        (
            ["alexnet", "-o", "plots.png", "--json", "plots.png"],
            "it is what --json writes",
        ),
    ],
)
def test_bad_usage_gets_one_line(in_a_folder, capsys, arguments, line):
    assert line in refusal(capsys, "study", *arguments)


def test_no_card_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    absent = Device("cpu", "no NVIDIA card or driver was found")
    monkeypatch.setattr(
        importlib.import_module("convswap.profiling.profile"), "choose_device", lambda: absent
    )
    assert "profiling needs an NVIDIA card" in refusal(capsys, "study", "alexnet")


@pytest.mark.alone
@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("cupti") is None, reason="cupti-python is not installed")
def test_on_a_card_every_part_takes_time_and_more_images_take_more(cuda):
    result = study(batches=[1, 64], runs=5)
    for row in result.rows:
        assert not row.failure
        assert all(row.parts[part] > 0 for part in PARTS), row
        assert row.total_ms <= row.run_ms * 1.05
    for side in result.sides:
        single, many = result.of_side(side)
        for part in ("copy in", "convolution", "max-pool"):
            assert many.parts[part] > single.parts[part]
