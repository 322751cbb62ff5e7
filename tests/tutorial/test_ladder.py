"""`convswap ladder`: its measurements, tables, files and errors, on the CPU and on a card."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from card_algorithms import capability, why_lacking
from command_line import refusal
from convswap.cli.main import main
from convswap.models import NETWORKS
from convswap.reference.metrics import TOLERANCES
from convswap.tutorial.ladder import climb as ladder
from convswap.tutorial.ladder.report import ladder_html, print_ladder, registers, shared_memory
from convswap.tutorial.ladder.rows import Ladder, MeasuredRung, Row, RungLayer
from ladder_sources import PAGES
from printed import printed
from repeats import repeats

LOOPS = PAGES[0]
# CPU algorithms in place of the rungs, the last one fused.
STAND_INS = [
    LOOPS,
    replace(LOOPS, number=2, name="direct", title="Second", precision="tf32", reported={}),
    replace(LOOPS, number=3, name="reference", title="Third <last>", precision="tf32", fuses=True),
]


@pytest.fixture
def stand_ins(monkeypatch):
    monkeypatch.setattr(ladder, "read_pages", lambda: STAND_INS)


def climb(network: str = "ece408-2018sp", **options) -> Ladder:
    return ladder.climb(network, data="synthetic", device="cpu", **{"images": 8, **options})


def test_every_rung_is_run_on_every_convolution_and_is_right(stand_ins):
    result = climb()
    assert [row.page.number for row in result.rows] == [1, 2, 3]
    assert (result.images, result.dataset, result.is_right) == (8, "synthetic", True)
    for row in result.rows:
        assert row.measured is not None
        assert [layer.node for layer in row.measured.layers] == ["conv1", "conv2"]
        assert row.tolerance == TOLERANCES[row.page.precision]
        # All of these accumulate in float32 or wider.
        assert 0 < row.measured.relative_l2_error < 1e-6
        assert row.measured.op_ms == sum(layer.op_ms for layer in row.measured.layers) > 0
        assert row.measured.timed_images == 8
    accuracies = {row.measured.accuracy for row in result.rows if row.measured is not None}
    assert len(accuracies) == 1 and 0 <= accuracies.pop() <= 1


def test_what_a_layer_moves_and_computes_is_counted_for_all_images(stand_ins):
    loops, _, fused = (row.measured for row in climb().rows)
    assert loops is not None and fused is not None
    first, second = loops.layers
    assert first.bytes == 4 * (8 * 64 * 64 + 6 * 25 + 8 * 6 * 60 * 60)
    assert second.bytes == 4 * (8 * 6 * 30 * 30 + 16 * 6 * 25 + 8 * 16 * 26 * 26)
    assert first.operations == 2 * 25 * 8 * 6 * 60 * 60
    assert first.fused == second.fused == () and first.apart_ms is None
    # The fused rung writes the pooled output, and has a bias of zeros.
    assert fused.layers[0].fused == ("Tanh", "MaxPool") and fused.layers[0].apart_ms is not None
    assert fused.layers[0].bytes == 4 * (8 * 64 * 64 + 6 * 25 + 6 + 8 * 6 * 30 * 30)
    assert fused.layers[0].operations == first.operations
    assert fused.layers[1].fused == () and fused.layers[1].bytes == second.bytes


def test_few_images_on_the_processor_stand_for_all(stand_ins, monkeypatch):
    monkeypatch.setattr(ladder, "CPU_IMAGES", 4)
    result = climb(images=40)
    measured = result.rows[0].measured
    assert measured is not None and (result.images, measured.timed_images) == (40, 4)
    assert measured.layers[0].operations == 2 * 25 * 40 * 6 * 60 * 60
    (note,) = [note for note in result.notes if "ran once" in note]
    assert "rung 1, 2, 3 ran once, on 4 images on the CPU; its times are scaled to 40 images" in note


def test_a_wrong_rung_is_reported_and_sets_the_status(stand_ins, monkeypatch, capsys):
    right = ladder.reference_of
    monkeypatch.setattr(ladder, "reference_of", lambda layer, inputs: right(layer, inputs) * (1 + 1e-4))
    assert main(["ladder", "ece408-2019sp", "--data", "synthetic", "--images", "4", "--device", "cpu"]) == 1
    output = capsys.readouterr().out
    # 1e-4 is too large for float32, and small for TF32.
    assert "RUNG 1 IS WRONG: relative L2 error 1.00e-04, at most 1e-05 in ieee." in output
    assert "RUNG 2" not in output and "Every rung that ran" not in output


def test_without_a_card_the_processor_climbs_alone_and_one_line_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--data", "synthetic", "--images", "20", "--device", "cpu"]
    assert main(["ladder", *arguments, "--json", "l.json", "--html", "l.html"]) == 0
    captured = capsys.readouterr()
    assert "15 rungs are CUDA kernels, which need a card: the CPU was asked for" in captured.out
    assert captured.out.count("\n    1   Seven loops on the processor") == 1
    assert "Every rung that ran is correct: 1 of 16." in captured.out
    assert captured.err.splitlines() == [
        "convswap: reading the network and the images",
        "convswap: rung 1 of 16: Seven loops on the processor",
    ]
    assert max(map(len, captured.out.splitlines())) <= 120
    report = json.loads((tmp_path / "l.json").read_text())
    assert (report["schema"], report["model"], report["images"]) == (1, "ece408-2017-high", 20)
    assert [rung["algorithm"] for rung in report["rungs"]] == [page.name for page in PAGES]
    first, *others = report["rungs"]
    assert first["why_not"] is None and first["reported"] == "9.1 to 17.5 s"
    assert all(rung["why_not"] == "it runs on a card" and "op_ms" not in rung for rung in others)
    page = (tmp_path / "l.html").read_text()
    assert page.count("<h2>") == 16 and "<svg" in page and "http://www.w3.org/2000/svg" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ece408-2017-hihg"], "unknown course network 'ece408-2017-hihg'; did you mean 'ece408-2017-high'"),
        (["resnet50"], "unknown course network 'resnet50'"),
        (["--images", "0"], "images must be at least 1, but 0 was given"),
        (["--images", "few"], "invalid int value: 'few'"),
        (["--data", "random"], "labelled images are needed"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--json", "no/such/l.json"], "there is no folder 'no/such'"),
        (["--html", "no/such/l.html"], "there is no folder 'no/such'"),
        (
            ["--json", "one", "--html", "one"],
            "cannot write 'one': it is what --json writes, and",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, "ladder", *arguments)


def test_titles_are_text_in_the_page_and_not_markup(stand_ins):
    page = ladder_html(climb())
    assert "Third &lt;last&gt;" in page and "<last>" not in page
    assert "<code>perf stat -e instructions,cycles</code>" in page


# Tests of arithmetic with made-up times of two layers; the second layer is never fused.


def layer(op_ms: float, **options) -> RungLayer:
    defaults = {"node": "conv1", "bytes": 10**9, "operations": 1, "floor_ms": 0.25, "relative_l2_error": 1e-7}
    return RungLayer(op_ms=op_ms, **{**defaults, **options})


def ladder_of(*times: tuple[float, float], fused: float | None = None, **options) -> Ladder:
    """Return a ladder of rungs with these times of two layers.

    The last rung fuses the first layer. With separate nodes that layer takes `fused` ms.
    """
    rows = []
    for number, (first, second) in enumerate(times, start=1):
        is_last = number == len(times)
        layers = (
            layer(first, apart_ms=fused if is_last else None, fused=("Tanh",) if fused and is_last else ()),
            layer(second, node="conv2"),
        )
        device = "cpu" if number == 1 else "cuda"
        page = replace(PAGES[number - 1], device=device)
        rows.append(Row(page, 1e-5, MeasuredRung(layers, network_ms=9.0, accuracy=0.5, timed_images=10)))
    cpu = ladder.choose_device("cpu")
    return Ladder("ece408-2018sp", cpu, {"processor": "p"}, 10, "synthetic", tuple(rows), **options)


def test_speedups_are_over_the_rung_before_the_first_and_the_first_on_the_card():
    result = ladder_of((600.0, 400.0), (6.0, 4.0), (4.0, 1.0))
    first, second, third = result.rows
    assert result.speedup_over_previous(first) is result.speedup_over_first(first) is None
    assert result.speedup_over_previous(second) == result.speedup_over_first(second) == 100.0
    assert result.speedup_over_first_on_card(second) is None
    assert (result.speedup_over_previous(third), result.speedup_over_first(third)) == (2.0, 200.0)
    assert result.speedup_over_first_on_card(third) == 2.0
    assert "From rung 2 to rung 3: 2.00x as fast." in printed(print_ladder, result)


def test_fused_rung_is_compared_with_the_nodes_that_it_replaces():
    # Fused conv1 takes 2 ms. Unfused, conv1 took 3 ms, and conv1 with the fused nodes takes 7 ms.
    # conv2 is not measured again.
    result = ladder_of((600.0, 400.0), (3.0, 1.0), (2.0, 0.5), fused=7.0)
    last = result.rows[-1]
    assert result.replaced_ms(last) == 7.0 + 1.0
    assert result.speedup_over_previous(last) == 8.0 / 2.5
    # The first rung on the card would run the fused nodes too: 4 ms more than its convolutions.
    assert result.speedup_over_first_on_card(last) == (4.0 + 4.0) / 2.5
    assert result.replaced_ms(result.rows[1]) is None


def test_rung_that_was_left_out_is_no_rung_before():
    result = ladder_of((600.0, 400.0), (6.0, 4.0), (4.0, 1.0))
    rows = (result.rows[0], Row(result.rows[1].page, 1e-5, why_not="odd"), result.rows[2])
    with_gap = replace(result, rows=rows)
    assert with_gap.speedup_over_previous(rows[2]) == 200.0
    assert with_gap.speedup_over_first_on_card(rows[2]) is None
    assert with_gap.to_json()["rungs"][1]["why_not"] == "odd"


def test_share_of_the_floor_and_bandwidth_are_of_all_layers():
    measured = ladder_of((600.0, 400.0), (6.0, 4.0)).rows[1].measured
    assert measured is not None and measured.floor_ms == 0.5
    # 2 GB in 10 ms.
    assert measured.gigabytes_per_second == pytest.approx(200.0)


def test_registers_and_shared_memory_are_of_each_layers_largest_kernel():
    def kernel(registers: int, shared_bytes: int, spilled_bytes: int = 0):
        return {
            "name": "k",
            "registers": registers,
            "spilled_bytes": spilled_bytes,
            "shared_bytes": shared_bytes,
            "threads": 1,
            "blocks": 1,
        }

    first = layer(1.0, kernels=(kernel(20, 9000), kernel(80, 100, 16)))
    measured = MeasuredRung((first, layer(1.0, kernels=(kernel(40, 53_300),))), 1.0, None, 10)
    assert registers(measured) == "80+16 B/40"
    assert shared_memory(measured) == "9.0/53.3"
    assert registers(MeasuredRung((layer(1.0),), 1.0, None, 10)) == "-"


def test_report_of_another_network_is_named():
    result = ladder_of((600.0, 400.0), (6.0, 4.0))
    assert result.reported(result.rows[0]) == "9.1 to 17.5 s (ece408-2017-high)"
    assert replace(result, model="ece408-2019fa").reported(result.rows[0]) == "11.2 s + 60.1 s"


def is_too_much_for_the_card(row: Row) -> bool:
    """Return whether the card lacks the rung's algorithm, or is older than 8.0 and lacks shared memory."""
    lacks_memory = capability() < 80 and "bytes in shared memory" in row.why_not
    return row.page.device == "cuda" and (lacks_memory or why_lacking(row.page.name) != "")


@pytest.mark.gpu
@pytest.mark.parametrize("network", NETWORKS)
def test_every_rung_of_every_network_is_right_on_the_card(network, cuda, monkeypatch):
    monkeypatch.setattr(ladder, "RULE", replace(ladder.RULE, burst_ms=1.0))
    result = ladder.climb(network, data="synthetic", device=cuda, images=repeats(40))
    assert result.is_right
    plain = result.rows[1].measured
    assert plain is not None
    rungs = [row for row in result.rows if not is_too_much_for_the_card(row)]
    for row in rungs:
        assert row.measured is not None, row.why_not
        assert row.measured.accuracy == pytest.approx(plain.accuracy, abs=0.01)
        assert row.measured.op_ms > 0
        if row.page.device == "cuda":
            assert row.measured.floor_ms is None or np.isfinite(row.measured.floor_ms)
            assert row.page.fuses or all(layer.kernels for layer in row.measured.layers)
    if rungs[-1] is result.rows[-1]:
        fused = rungs[-1].measured
        assert fused is not None and any(layer.fused for layer in fused.layers)
    assert f"From rung 2 to rung {rungs[-1].page.number}" in printed(print_ladder, result)


@pytest.mark.gpu
def test_the_ladder_is_climbed_with_10000_images(cuda):
    images = repeats(10_000)
    result = ladder.climb("ece408-2017-high", data="synthetic", device=cuda, images=images)
    assert result.images == images and result.is_right
