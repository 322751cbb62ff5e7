"""The lab on a card: correct kernels are timed inside sessions, and wrong kernels do not stop it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from convswap import _native, lab
from convswap.tutorial.lab.api import watch
from convswap.tutorial.lab.counters import ACTIVE_WARPS, NAMES, SECTORS
from convswap.tutorial.lab.process import LabProcess
from convswap.tutorial.lab.ranking import ranked, remember
from convswap.tutorial.lab.result import LabResult
from convswap.tutorial.lab.scaffold import INTERFACES, rung_copy, template
from convswap.tutorial.ladder.rung_texts import read_pages
from faulty_kernels import COURSE, FAULTY, Faulty

SCHEMA = json.loads((Path(lab.__file__).parent / "schema.json").read_text(encoding="utf-8"))
# A student's network, with few images: the test checks the lab, not the card.
OPTIONS = {"batch": 100, "baselines": False}
ON_CARD = [faulty for faulty in FAULTY if "refused" not in faulty.kinds]
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def process(cuda) -> Iterator[LabProcess]:
    """A worker that all tests share; it restarts after a kernel that ended it."""
    with LabProcess() as worker:
        yield worker


@pytest.mark.parametrize("faulty", ON_CARD, ids=lambda faulty: faulty.name)
def test_fault_of_a_kernel_is_reported_and_the_next_kernel_is_right(
    process: LabProcess, faulty: Faulty
) -> None:
    seconds = 3.0 if "time" in faulty.kinds else 10.0
    start = time.monotonic()
    result = lab.run(faulty.text, "2017-conv1", seconds=seconds, time=False, process=process, **OPTIONS)
    assert result.fault is not None, "it was found right"
    assert result.fault.kind in faulty.kinds, result.fault.text
    assert "kernel.cu" in result.fault.text
    jsonschema.validate(result.to_json(), SCHEMA)
    assert time.monotonic() - start < 90
    if result.fault.kind not in ("crash", "time", "outside", "output"):
        return  # the kernel did not disturb the card
    after = lab.run(COURSE, "2017-conv1", time=False, process=process, **OPTIONS)
    assert after.fault is None, after.fault


@pytest.mark.parametrize("name", [*INTERFACES, *(page.name for page in read_pages() if page.launch)])
def test_scaffolds_are_right_in_a_session(process: LabProcess, name: str) -> None:
    text = template(name) if name in INTERFACES else rung_copy(name)
    # As an older card, the driver compiles PTX within the time of the check: seconds for ladder_08_unrolled.
    result = lab.run(text, "ece408-2017-high", seconds=60.0, process=process, **OPTIONS)
    assert result.fault is None, result.fault
    assert result.is_right and result.card
    assert result.network_error is not None and result.network_error < 1e-4
    (layer,) = result.layers
    assert layer.milliseconds > 0 and set(layer.baselines) == {"default provider", "auto"}
    assert layer.facts["registers"] >= 16 and 0 < layer.occupancy <= 1
    assert result.hint
    jsonschema.validate(result.to_json(), SCHEMA)


def test_model_with_bias_and_stride_runs_a_kernel_of_the_complete_op(process: LabProcess) -> None:
    result = lab.run(template("conv"), "alexnet", batch=4, baselines=False, process=process)
    assert result.fault is None, result.fault
    assert len(result.layers) == 5 and not result.notes


@pytest.mark.alone
def test_ranks_have_the_ladder_and_repeat(process: LabProcess, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CONVSWAP_CACHE", str(tmp_path))
    results: list[LabResult] = []
    for _ in range(3):
        result = lab.run(rung_copy("ladder_09_constants"), "2017-conv1", batch=2000, process=process)
        assert result.fault is None, result.fault
        remember(result)
        results.append(result)
    rows = ranked(network="2017-conv1")
    assert sum(not row.is_baseline for row in rows) == 1
    assert {"ladder_06_block_per_image", "default provider", "auto"} <= {row.name for row in rows}
    times = np.array([result.milliseconds for result in results])
    # The copy is the rung's own code, without the bias.
    assert results[0].baseline("ladder_09_constants") == pytest.approx(times[0], rel=0.25)
    assert times.max() / times.min() < 1.1


def test_counters_are_read_or_a_note_says_why_not(process: LabProcess) -> None:
    result = lab.run(COURSE, "2017-conv1", profile=True, process=process, **OPTIONS)
    assert result.fault is None, result.fault
    if result.counters:
        assert set(result.counters) == set(NAMES)
        # Neighbouring threads read neighbouring pixels, except at the ends of rows.
        assert 1 <= result.counters[SECTORS] < 8
        assert 0 < result.counters[ACTIVE_WARPS] <= 100
    else:
        assert any("counters were not read" in note for note in result.notes), result.notes
    # The worker continues in either case.
    assert lab.run(COURSE, "2017-conv1", time=False, process=process, **OPTIONS).is_right


@pytest.mark.alone
def test_watch_reports_soon_after_a_save(cuda, tmp_path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(COURSE)
    results: list[tuple[object, float]] = []

    def report(result: object, seconds: float) -> None:
        results.append((result, seconds))
        file.write_text(COURSE + f"// saved {len(results)}\n")

    watch(file, "ece408-2017-high", report, saves=2, batch=1000)
    assert all(isinstance(result, LabResult) and result.is_right for result, _ in results), results
    assert results[-1][1] < 6, [seconds for _, seconds in results]


def test_fences_show_what_is_written_outside(cuda) -> None:
    array = _native.DeviceArray((3, 5), fence=512)
    assert array.damage() is None
    inner = _native.DeviceArray.from_numpy(np.ones((2, 2), np.float32), fence=256)
    assert inner.damage() is None and inner.to_numpy().tolist() == [[1, 1], [1, 1]]
    _native.fill_shared_memory()
