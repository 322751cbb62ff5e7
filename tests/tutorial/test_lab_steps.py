"""The steps of the lab on a card, with a pretended card whose kernel is a Python function."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime.device import Device
from convswap.runtime.layers import conv_layers
from convswap.runtime.library import LAB_ENTRY
from convswap.runtime.sessions import CONVSWAP, make_session
from convswap.tutorial.lab.kernel import Request, read_kernel
from convswap.tutorial.lab.ranking import ranked, remember
from convswap.tutorial.lab.report import class_csv, ranking_html
from convswap.tutorial.lab.result import Fault, LabResult
from convswap.tutorial.lab.runner import Runner
from convswap.tutorial.lab.scaffold import template
from convswap.tutorial.lab.targets import open_target
from faulty_kernels import COURSE
from op_sessions import conv_model
from pretend_card import pretend_card, right_kernel

WHY_NO_COMPILER = _native.kernel_compiler()["why_not"]
pytestmark = pytest.mark.skipif(bool(WHY_NO_COMPILER), reason=WHY_NO_COMPILER or "NVRTC is there")


@pytest.fixture(autouse=True)
def no_emulation(monkeypatch) -> None:
    """Skip the check in emulation, which test_lab_emulation.py covers."""
    from convswap.tutorial.lab import runner

    monkeypatch.setattr(runner, "find_host_compiler", lambda: None)


def run(
    tmp_path: Path, target: str = "ece408-2017-high", interface: str = "course", **changed: object
) -> LabResult:
    path = tmp_path / "mine.cu"
    path.write_text(template(interface))
    stages: list[str] = []
    runner = Runner(lambda stage, _seconds, **_shown: stages.append(stage))
    result = runner.run(Request(read_kernel(path), target, batch=2, **changed), str(path))
    assert stages[0] == "compiling mine.cu"
    return result


def test_right_kernel_is_checked_timed_and_ranked(monkeypatch, tmp_path) -> None:
    pretend_card(monkeypatch)
    result = run(tmp_path)
    assert result.fault is None and result.is_right
    assert result.cases == 8 + 1 and result.relative_l2_error < 1e-5
    assert result.network_error < 1e-5
    (layer,) = result.layers
    assert layer.milliseconds > 0 and list(layer.baselines) == ["default provider", "auto"]
    assert result.hint
    assert pickle.loads(pickle.dumps(result)) == result
    monkeypatch.setenv("CONVSWAP_CACHE", str(tmp_path))
    remember(result)
    remember(result)
    rows = ranked(card="h200", network="2017")
    assert sorted(row.is_baseline for row in rows) == [False, True, True]
    assert [row.milliseconds for row in rows] == sorted(row.milliseconds for row in rows)
    assert ranked(card="A100") == []
    assert "our best" in ranking_html(rows) and "mine.cu" in ranking_html(rows)
    assert class_csv([result]).splitlines()[1].startswith("mine.cu,yes,,")


def test_default_provider_is_timed_once_for_its_versions_and_our_best_each_time(
    monkeypatch, tmp_path
) -> None:
    from convswap.tutorial.lab import card_times

    pretend_card(monkeypatch)
    monkeypatch.setenv("CONVSWAP_CACHE", str(tmp_path / "cache"))
    timed: list[str] = []

    def time(self, conv, side, algorithm) -> float:
        timed.append(str(algorithm))
        return 1.0 + len(timed)

    monkeypatch.setattr(card_times.CardTimes, "_time", time)
    baselines = [dict(run(tmp_path).layers[0].baselines) for _ in range(2)]
    assert timed == ["None", "auto", "direct", "auto", "direct"]  # the pretended kernel runs on our side
    assert baselines[0]["default provider"] == baselines[1]["default provider"] == 2.0
    assert baselines[1]["auto"] == 5.0
    monkeypatch.setattr(card_times, "cudnn_version", lambda: 90_000)
    assert run(tmp_path).layers[0].baselines["default provider"] == 7.0


def test_card_is_opened_once_while_the_first_kernel_is_compiled(monkeypatch, tmp_path) -> None:
    from convswap.tutorial.lab import runner as module
    from convswap.tutorial.lab import warm_up

    begun, compiled, steps = threading.Event(), threading.Event(), []
    compile_kernel, open_target = module.compile_kernel, module.open_target

    class Context:
        @staticmethod
        def DeviceArray(shape):
            assert compiled.wait(60)
            steps.append("context")
            raise RuntimeError("which whoever needs the card will tell")

    def compile_beside(*arguments):
        assert begun.wait(60)
        compiled.set()
        return compile_kernel(*arguments)

    def open_after(*arguments):
        steps.append("target")
        return open_target(*arguments)

    pretend_card(monkeypatch)
    monkeypatch.setattr(warm_up, "load_cuda_libraries", lambda device: (steps.append(device), begun.set()))
    monkeypatch.setattr(warm_up, "_native", Context)
    monkeypatch.setattr(module, "compile_kernel", compile_beside)
    monkeypatch.setattr(module, "open_target", open_after)
    path = tmp_path / "mine.cu"
    path.write_text(COURSE)
    runner = Runner(lambda *_, **__: None)
    for _ in range(2):
        result = runner.run(Request(read_kernel(path), "2019fa-conv2", batch=2, time=False), str(path))
        assert result.fault is None
    assert steps == ["cuda", "context", "target", "target"]


def test_worker_opens_the_card_before_it_imports_what_is_slow() -> None:
    our_end, worker_end = multiprocessing.Pipe()
    descriptor = worker_end.fileno()
    command = [sys.executable, "-X", "importtime", "-m", "convswap.tutorial.lab.worker", str(descriptor)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=[descriptor]) as worker:
        worker_end.close()
        assert our_end.recv()["stage"] == "starting"
        our_end.close()
        output = worker.stderr.read()
    assert worker.returncode == 0
    imported = [line.rpartition("|")[2].strip() for line in output.splitlines()]
    first = imported.index("convswap.tutorial.lab.warm_up")
    assert all(imported.index(name) > first for name in ("onnx", "onnx_ir", "convswap.tutorial.lab.runner"))


def test_layer_of_a_suite_and_model_with_bias_are_targets(monkeypatch, tmp_path) -> None:
    pretend_card(monkeypatch)
    result = run(tmp_path, "2019fa-conv2")
    assert result.fault is None and len(result.layers) == 1 and result.network_error is None
    model = str(tmp_path / "biased.onnx")
    weights, bias = np.ones((4, 2, 3, 3), np.float32), np.arange(4, dtype=np.float32)
    Path(model).write_bytes(conv_model(x=[3, 2, 9, 9], w=weights, b=bias, domain=""))
    of_model = run(tmp_path, model, "conv", time=False)
    assert of_model.fault is None and of_model.cases == 15 + 1 and not of_model.layers
    with pytest.raises(ConvswapError, match=r"mine.cu computes no convolution of .*bias.*convswap lab new"):
        run(tmp_path, model)


def test_nodes_of_a_network_name_the_kernel_where_it_supports_them(tmp_path) -> None:
    kernel = read_kernel(COURSE.replace("// launch:", "// only: C > 1\n// launch:"))
    target = open_target("ece408-2019fa", kernel, None, Device("cpu", "asked for"))
    nodes = ir.to_proto(target.swapped).graph.node
    algorithms = {node.name: algorithm_of(node) for node in nodes if node.op_type == "Conv"}
    assert sorted(algorithms.values()) == ["auto", "lab"]
    assert target.batch == 10_000 and [each.why_not[:12] for each in target.layers] == ["the file is ", ""]
    assert target.supported[0].shapes == {target.supported[0].layer.input_names[0]: (10_000, 12, 33, 33)}


def algorithm_of(node) -> str:
    return next((each.s.decode() for each in node.attribute if each.name == "algorithm"), "auto")


def test_session_reads_the_kernel_when_the_library_is_registered(tmp_path) -> None:
    (layer,) = conv_layers(onnx.load_from_string(conv_model()))
    model = layer.model({name: 4 for name in layer.input_names}, swapped=True)
    path = tmp_path / "mine.cu"
    side = CONVSWAP.with_entries({LAB_ENTRY: str(path)})
    with pytest.raises(ConvswapError, match=r"the kernel '.*mine.cu' \(convswap.lab\) cannot be read"):
        make_session(model, side, Device("cpu", "asked for"))
    path.write_text("// launch: grid(B block(1)\n__global__ void forward() {}\n")
    with pytest.raises(ConvswapError, match=r"mine\.cu:1: .*expected"):
        make_session(model, side, Device("cpu", "asked for"))
    path.write_text(COURSE)
    make_session(model, side, Device("cpu", "asked for"))


def test_faults_of_kernels_on_the_card_are_reported(monkeypatch, tmp_path) -> None:
    def outside(x, w, b, y, **arguments) -> None:
        right_kernel(x, w, b, y, **arguments)
        fence = (y.with_fence().size - y.values.size) // 2
        y.with_fence()[fence + y.values.size] = 1.0

    def unwritten(x, w, b, y, **arguments) -> None:
        values = y.to_numpy()
        right_kernel(x, w, b, y, **arguments)
        y.values[..., -1] = values[..., -1]

    def wrong(x, w, b, y, **arguments) -> None:
        right_kernel(x, w, b, y, **arguments)
        y.values[..., -1] += 1

    def racing(x, w, b, y, **arguments) -> None:
        right_kernel(x, w, b, y, **arguments)
        racing.runs += 1
        y.values[..., 0] += racing.runs % 2

    def changing(x, w, b, y, **arguments) -> None:
        right_kernel(x, w, b, y, **arguments)
        x.values[..., 0] = 0

    def faulting(x, w, b, y, **arguments) -> None:
        raise RuntimeError("cuEventSynchronize(events.end): an illegal memory access was encountered")

    racing.runs = 1
    kinds = {}
    for kernel in (outside, unwritten, wrong, racing, changing, faulting):
        with monkeypatch.context() as patched:
            pretend_card(patched, kernel)
            fault = run(tmp_path, "2017-conv1").fault
            kinds[kernel.__name__] = fault.kind
            assert "B=1 M=1 C=1 H=5 W=5 K=3" in fault.text
    assert kinds == {
        "outside": "outside",
        "unwritten": "unwritten",
        "wrong": "wrong",
        "racing": "race",
        "changing": "outside",
        "faulting": "crash",
    }


@pytest.mark.parametrize("emulated", [None, Fault("outside", "beyond shared memory", {})])
def test_kernel_that_took_the_card_down_leaves_no_worker_whatever_fault_is_reported(
    emulated: Fault | None, monkeypatch, tmp_path
) -> None:
    """The check in emulation may find another fault, or none."""
    from convswap.tutorial.lab import runner

    def faulting(x, w, b, y, **arguments) -> None:
        raise RuntimeError("cuEventSynchronize(events.end): an illegal memory access was encountered")

    pretend_card(monkeypatch, faulting)
    monkeypatch.setattr(runner, "find_host_compiler", lambda: "g++")
    monkeypatch.setattr(runner, "check_in_emulation", lambda *_, **__: emulated)
    path = tmp_path / "mine.cu"
    path.write_text(COURSE)
    top = Runner(lambda *_, **_shown: None)
    assert not top.is_lost
    fault = top.run(Request(read_kernel(path), "2017-conv1", batch=2), str(path)).fault
    assert fault is not None and fault.kind == ("crash" if emulated is None else emulated.kind)
    assert top.is_lost

    def wrong(x, w, b, y, **arguments) -> None:
        right_kernel(x, w, b, y, **arguments)
        y.values[..., -1] += 1

    pretend_card(monkeypatch, wrong)
    top = Runner(lambda *_, **_shown: None)
    assert top.run(Request(read_kernel(path), "2017-conv1", batch=2), str(path)).fault.kind == "wrong"
    assert not top.is_lost


def test_kernel_that_is_right_alone_but_not_in_the_model_is_reported(monkeypatch, tmp_path) -> None:
    pretend_card(monkeypatch)
    from convswap.tutorial.lab import runner

    monkeypatch.setattr(runner, "network_error", lambda *_: float(np.inf))
    fault = run(tmp_path).fault
    assert fault.kind == "wrong" and "changes the answers of ece408-2017-high" in fault.text
