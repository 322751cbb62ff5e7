"""The layer bench times every layer of a suite, and its rows name suite, device, batch and versions."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
from comparisons import ROW_KEYS
from convswap import _native
from convswap.bench.report import print_suite
from convswap.bench.suite_runs import run_suite
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.models import NETWORKS, Convolution
from convswap.runtime import sessions
from convswap.runtime.device import Device
from convswap.runtime.sessions import Side
from convswap.timing.floor import ceilings, floor_ms
from convswap.timing.sampler import BACK_TO_BACK, WARM_UPS
from convswap.timing.single_node import single_node
from convswap.timing.suites import SUITES
from printed import printed
from refused import refused
from tuning_files import line, write


class Work:
    """A stand-in for a conv problem: its bytes and operations."""

    def __init__(self, moved: float, operations: float) -> None:
        self.bytes, self.operations = moved, operations


@pytest.fixture(scope="module")
def rows():
    return list(run_suite("course", device="cpu", batches=[1, 2]))


def test_every_layer_has_a_row_for_every_batch(rows):
    assert [(row["layer"], row["batch"]) for row in rows] == [
        (layer.name, batch) for batch in (1, 2) for layer in SUITES["course"]
    ]
    assert all(row.keys() == ROW_KEYS | {"others_ms", "method"} for row in rows)
    json.dumps(rows, allow_nan=False)


def test_rows_of_the_cpu_have_no_floor_and_no_other_side(rows):
    for row in rows:
        assert row["floor_ms"] is row["best_other_ms"] is row["best_other"] is None
        assert row["default_ms"] > 0 and row["convswap_ms"] > 0
        # Float32 sums of at most 588 products.
        assert 0 < row["relative_l2_error"] < 2e-6


def test_cuda_libraries_are_loaded_before_the_inputs_go_to_the_card(monkeypatch):
    """Copying inputs to the card loads ONNX Runtime's CUDA provider, before any session exists."""
    events = []
    monkeypatch.setattr(sessions, "load_cuda_libraries", lambda device: events.append(f"load for {device}"))
    monkeypatch.setattr(sessions, "_value", lambda array, device: events.append(f"put on {device}"))
    sessions.on_device({"x": np.zeros(3, np.float32)}, Device("cuda", "asked for"))
    assert events == ["load for cuda", "put on cuda"]


def test_inputs_too_large_for_the_card_are_refused_in_one_line(monkeypatch):
    def fail(array, device):
        raise RuntimeError("Failed to allocate memory\nfor requested buffer")

    monkeypatch.setattr(sessions, "load_cuda_libraries", lambda device: None)
    monkeypatch.setattr(sessions, "_value", fail)
    with pytest.raises(ConvswapError, match=r"memory of the device cuda: Failed to allocate memory for req"):
        sessions.on_device({"x": np.zeros(3, np.float32)}, Device("cuda", "asked for"))


def test_batch_that_the_memory_does_not_hold_is_refused_in_one_line(monkeypatch, capsys):
    # 2^40 images of 3 KB are more than a process can address.
    monkeypatch.setattr("convswap.errors.LARGEST_COUNT", 2**40)
    assert main(["bench", "--layers", "2017", "--batch", str(2**40), "--device", "cpu"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("convswap: the memory does not suffice: ") and line.endswith("or fewer images")


def test_course_suite_has_the_convolutions_of_the_course_networks():
    for year in ("2017", "2018fa", "2019fa", "2020"):
        network = NETWORKS["ece408-2017-high" if year == "2017" else f"ece408-{year}"]
        declared = [layer for layer in network.layers if isinstance(layer, Convolution)]
        layers = [layer for layer in SUITES["course"] if layer.name.startswith(year)]
        assert [(layer.filters, layer.kernel) for layer in layers] == [
            (layer.out_channels, layer.kernel) for layer in declared
        ]
        assert (layers[0].channels, layers[0].size) == (1, network.image_size)
        # Each network pools by 2 between its convolutions.
        for before, after in pairwise(layers):
            assert after.channels == before.filters
            assert after.size == (before.size - before.kernel + 1) // 2
    assert len(SUITES["course"]) == 7


def test_regular_expression_keeps_the_layers_it_matches():
    rows = list(
        run_suite("course", layers="^20(17|20)-conv1$", device="cpu", batches=[1], algorithm="reference")
    )
    assert [row["layer"] for row in rows] == ["2017-conv1", "2020-conv1"]
    assert {row["algorithm"] for row in rows} == {"reference"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": "curse"}, "unknown suite 'curse'; did you mean 'course'"),
        ({"layers": "conv9"}, "no layer of suite course matches 'conv9'; it has 2017-conv1"),
        ({"layers": "("}, r"'\(' is not a regular expression"),
        ({"batches": [0]}, "batch must be at least 1, but 0 was given"),
        ({"precision": "ieeee"}, "did you mean 'ieee'"),
        ({"precision": "float"}, "did you mean 'float16'"),
        ({"batches": [1, 64, 1]}, "batch 1 was given more than once"),
        ({"algorithm": "dirct"}, "did you mean 'direct'"),
        pytest.param(
            {"algorithm": "naive"},
            "^algorithm 'naive' is not for the device cpu, which has auto, tuned, direct",
        ),
        ({"against": "al"}, "did you mean 'all'"),
        ({"device": "cpus"}, "did you mean 'cpu'"),
    ],
    ids=str,
)
def test_bad_argument_is_refused_in_one_line(arguments, message):
    with refused(message):
        list(run_suite(**{"device": "cpu", **arguments}))


def test_table_names_every_layer_and_the_versions_in_120_columns(rows):
    text = printed(print_suite, rows, device="cpu")
    assert max(map(len, text.splitlines())) <= 120
    assert f"ONNX Runtime {onnxruntime.__version__}" in text
    assert all(layer.name in text for layer in SUITES["course"])


# Sums are in float32, so the error is that of rounding the result to this many bits. It is uniform up to
# between 2^-bits and half of 2^-bits of the result, which is about 0.42 * 2^-bits in the root mean square.
@pytest.mark.parametrize(("precision", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_precision_of_16_bits_is_the_type_of_all_tensors(precision, bits, device):
    (row,) = run_suite(layers="2020-conv2", precision=precision, device=device, batches=[2])
    assert row["precision"] == precision
    assert 0.3 * 2.0**-bits < row["relative_l2_error"] < 0.5 * 2.0**-bits
    assert row["convswap_ms"] > 0
    if precision == "float16":
        assert row["default_ms"] > 0


def test_other_sides_that_were_asked_for_and_are_not_there_are_explained(capsys):
    arguments = ["bench", "--layers", "2017", "--batch", "1", "--device", "cpu"]
    explanation = "Note: the CPU provider has no options for Conv, so the default is its only side."
    assert main(arguments) == 0
    assert explanation not in capsys.readouterr().out
    assert main([*arguments, "--against", "all"]) == 0
    assert explanation in capsys.readouterr().out


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_sides_that_round_to_tf32_are_named_if_our_side_runs_in_ieee(precision, rows, monkeypatch):
    card = Device("cuda", "asked for", {"name": "NVIDIA H200"})
    monkeypatch.setattr("convswap.bench.report.choose_device", lambda device: card)
    text = printed(print_suite, [{**rows[0], "precision": precision}], device="cuda")
    note = "Note: convswap and no_tf32 (--against all) compute in ieee, all others in tf32."
    assert (note in text) == (precision == "ieee")


@pytest.mark.parametrize("against", ["default", "algorithms"])
def test_error_is_that_of_the_algorithm_that_was_timed(against, table, monkeypatch):
    """The tuning table has an entry for the timed batch, and none for the one image that is checked."""
    monkeypatch.setattr("convswap.timing.single_node.REFERENCE_IMAGES", 1)
    layer = SUITES["course"][0]
    problem = single_node(layer, "tf32", "auto").problem({"x": layer.input_shape(2)})
    write(table, line(problem.text, "reference", "cpu"))

    def row(algorithm):
        (timed,) = run_suite(layers="2017", device="cpu", batches=[2], algorithm=algorithm, against=against)
        return timed["algorithm"], timed["relative_l2_error"]

    assert row("tuned") == row("reference") != row("auto")
    assert row("reference")[1] < row("auto")[1]  # the automatic choice sums in float32


def test_type_that_the_provider_has_no_conv_for_leaves_its_time_open():
    """ONNX Runtime has no bfloat16 Conv for the CPU."""
    rows = list(run_suite(layers="2017", precision="bfloat16", device="cpu", batches=[1]))
    assert rows[0]["default_ms"] is None
    assert "the default provider has no Conv in bfloat16 here" in printed(print_suite, rows, device="cpu")


@pytest.fixture
def fail_default(monkeypatch):
    """Make ONNX Runtime refuse the unswapped model with a message, and load the swapped one."""

    def give(message: str) -> None:
        def session(source, *arguments, **options):
            (node,) = onnx.load_from_string(source).graph.node
            if not node.domain:
                raise RuntimeError(message)
            return load(source, *arguments, **options)

        load = onnxruntime.InferenceSession
        monkeypatch.setattr(onnxruntime, "InferenceSession", session)

    return give


@pytest.mark.parametrize(
    "message",
    [
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Conv(11) node",
        "Failed to find kernel for com.ms.internal.nhwc.Conv(11) (node:'conv' ep:'CUDAExecutionProvider')",
        "This session contains graph nodes that are assigned to the default CPU EP, but fallback to CPU EP "
        "has been explicitly disabled by the user.",
    ],
    ids=["no implementation", "no kernel", "not on this device"],
)
def test_type_without_a_kernel_leaves_the_time_open_but_not_in_float32(message, fail_default):
    fail_default(message)
    (row,) = run_suite(layers="2017", precision="float16", device="cpu", batches=[1])
    assert row["default_ms"] is None and row["convswap_ms"] > 0
    with pytest.raises(ConvswapError, match="on the default side: "):
        list(run_suite(layers="2017", device="cpu", batches=[1]))


@pytest.mark.parametrize(
    "message",
    [
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : cuDNN is unavailable",
        "Failed to allocate memory for requested buffer of size 123",
    ],
)
def test_any_other_failure_is_not_read_as_a_missing_kernel(message, fail_default, capsys):
    fail_default(message)
    arguments = ["--layers", "2017", "--precision", "float16", "--batch", "1", "--device", "cpu"]
    for alternate in ([], ["--alternate", "--batch", "1,2"]):
        assert main(["bench", *arguments, *alternate]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.endswith(f"cannot load the model on the default side: {message}")


def test_failure_of_the_default_in_float32_is_not_passed_over(monkeypatch):
    def fail(model, side, device, **options):
        raise ConvswapError(f"{side.name} fails")

    monkeypatch.setattr("convswap.timing.single_node.make_session", fail)
    with pytest.raises(ConvswapError, match="default fails"):
        list(run_suite(layers="2017", device="cpu", batches=[1]))


def test_floor_of_16_bits_is_that_of_half_the_bytes_at_their_own_rate():
    layer = next(layer for layer in SUITES["course"] if layer.name == "2019fa-conv1")
    floors = {}
    for precision in ("tf32", "float16", "bfloat16"):
        conv = single_node(layer, precision, "auto")
        problem = conv.problem({"x": layer.input_shape(10_000)})
        floors[precision] = floor_ms(problem, {"name": "NVIDIA H200"}, conv.arithmetic)
    assert floors["tf32"] == pytest.approx(0.532, abs=1e-3)
    assert floors["float16"] == floors["bfloat16"] == pytest.approx(0.266, abs=1e-3)


class Timer:
    """A GPU timer for which every burst takes 2 ms."""

    def __init__(self) -> None:
        self.provider_options: dict[str, str] = {}
        self.started = 0

    def milliseconds(self, start) -> float:
        start()
        self.started += 1
        return 2.0


@pytest.fixture
def timer(monkeypatch):
    """Time batch 1 on the CPU with a GPU timer, and against another side, as on a card."""
    timer = Timer()
    monkeypatch.setattr("convswap.bench.suite_runs._timer", lambda device: timer)
    monkeypatch.setattr("convswap.bench.suite_runs.MAX_BACK_TO_BACK_BATCH", 1)
    monkeypatch.setattr("convswap.bench.suite_runs.other_sides", lambda *_: (Side("heuristic"),))
    return timer


def test_short_runs_are_timed_back_to_back_on_every_side(timer):
    short, long = run_suite(layers="2017", device="cpu", batches=[1, 2], against="all")
    # The timer reports 2 ms for each burst of 100 runs, for both sides.
    assert short["convswap_ms"] == short["default_ms"] == short["best_other_ms"] == pytest.approx(0.02)
    assert timer.started == 3 * (1 + WARM_UPS + BACK_TO_BACK.samples)
    assert short["method"] == "GPU time of up to 200 runs back to back, alternated 5 times"
    assert long["method"] == "20 synchronised runs, alternated"
    assert short["others_ms"].keys() == long["others_ms"].keys() == {"heuristic"}
    assert long["default_ms"] != 0.02


@pytest.mark.gpu
def test_batches_up_to_4096_are_timed_by_the_card(cuda):
    short, long = run_suite(layers="2017", batches=[64, 4097], device="cuda", against="all")
    assert short["method"].startswith("GPU time") and long["method"].startswith("20 synchronised")
    # PyTorch's sides are present if it is installed.
    assert {each for each in short["others_ms"] if "pytorch" not in each} == {"heuristic", "no_tf32", "nhwc"}
    assert 0 < short["floor_ms"] < short["convswap_ms"] < long["convswap_ms"]


def test_speedups_of_all_layers_are_against_each_side_and_the_fastest_of_each_row():
    def row(layer, default, heuristic):
        return {
            "layer": layer, "precision": "tf32", "batch": 64, "convswap_ms": 1.0, "algorithm": "direct",
            "floor_ms": 0.8, "default_ms": default, "best_other_ms": heuristic, "best_other": "heuristic",
            "relative_l2_error": 0.0, "others_ms": {"heuristic": heuristic}, "method": "so",
        }  # fmt: skip

    text = printed(print_suite, [row("a", 9.0, 1.0), row("b", 4.0, 16.0)], device="cpu")
    lines = [line.split() for line in text.splitlines()]
    assert ["64", "default", "6.00x", "4.00x", "b"] in lines
    assert ["64", "heuristic", "4.00x", "1.00x", "a"] in lines
    assert ["64", "the", "fastest", "of", "these", "2.00x", "1.00x", "a"] in lines
    assert "Batch 64: so." in text
    assert [line for line in lines if line[:2] == ["b", "64"]] == [
        ["b", "64", "4.00", "16.0", "heuristic", "1.00", "4.00x", "0.800", "80", "%", "0.00e+00", "direct"]
    ]


def test_layer_that_no_other_side_computes_is_left_out_of_the_speedups():
    def row(layer, heuristic):
        return {
            "layer": layer, "precision": "bfloat16", "batch": 64, "convswap_ms": 1.0, "algorithm": "direct",
            "floor_ms": 0.8, "default_ms": None, "best_other_ms": heuristic, "best_other": None,
            "relative_l2_error": 0.0, "method": "so",
            "others_ms": {} if heuristic is None else {"heuristic": heuristic},
        }  # fmt: skip

    text = printed(print_suite, [row("a", None), row("b", 4.0)], device="cpu")
    lines = [line.split() for line in text.splitlines()]
    assert ["64", "the", "fastest", "of", "these", "4.00x", "4.00x", "b"] in lines


def test_floor_is_the_larger_of_memory_and_arithmetic():
    card = {"name": "NVIDIA H200"}
    # 4.30 TB/s, measured as a copy, and 989 TFLOP/s of scaled float16, from the datasheet.
    assert floor_ms(Work(4.3e9, 1e9), card, "tf32") == pytest.approx(1.0)
    assert floor_ms(Work(4.3e6, 989e9), card, "tf32") == pytest.approx(1.0)
    # Three float16 products, at 989 TFLOP/s, have the accuracy of one float32 product.
    assert floor_ms(Work(4.3e6, 989e9), card, "ieee") == pytest.approx(3.0)


def test_floor_of_an_unknown_card_is_that_of_its_memory_and_none_without_one():
    assert floor_ms(Work(1e9, 1e15), {"name": "Other", "memory_bandwidth": 1e12}, "tf32") == pytest.approx(
        1.0
    )
    assert floor_ms(Work(1e9, 1e15), {"name": "Other"}, "tf32") is None
    assert floor_ms(Work(1e9, 1e15), None, "tf32") is None


@pytest.mark.gpu
def test_a_card_reports_the_bandwidth_of_its_memory(cuda):
    for card in _native.cuda_devices():
        # Bytes per second, from a small laptop's card to several times the fastest card of 2026.
        assert 1e10 < card["memory_bandwidth"] < 1e14
        # The measured bandwidth is below the theoretical one.
        measured = ceilings(card)
        assert measured is not None and measured.bandwidth <= card["memory_bandwidth"]
