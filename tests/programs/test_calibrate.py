"""`convswap calibrate`, and the tables of coefficients that it adapts to a card."""

from __future__ import annotations

import importlib
import json

import pytest
from command_line import only_line_of_refusal
from convswap import _native
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.runtime import tuning
from convswap.runtime.device import Device
from convswap.runtime.tuning import read_table
from convswap.timing.timed_conv import TimedConv
from fake_card import needs_compiler, run_beside_card
from planned_card import PlannedCard
from pretend_cluster import PretendCluster
from tuning_files import line, write

CARD = {"name": "a card", "compute_capability": 90, "is_restricted": False, "cost_table": "fitted"}
MEMORY_BOUND = TimedConv(
    (64, 64, 112, 112), (64, 1, 3, 3), "float16", attributes={"group": 64, "pads": [1] * 4}
)


def names() -> list[str]:
    return [f"{family}.{name}" for family, name, *_ in _native.coefficients()]


def test_factors_multiply_the_times_of_a_scale_or_a_family_and_divide_its_rates():
    _, costs = _native.fitted_costs(compute_capability=90)
    slower = _native.with_factors(costs, {"memory": 2, "tiled": 3, "unknown": 5})
    seen = set()
    for (family, _, unit, scale), before, after in zip(_native.coefficients(), costs, slower, strict=True):
        factor = 1 if unit == "" else (2 if scale == "memory" else 1) * (3 if family == "tiled" else 1)
        assert after == pytest.approx(before / factor if unit == "GB/s" else before * factor)
        seen.add((factor, unit == "GB/s"))
    assert {(1, False), (2, True), (3, False)} <= seen
    assert all(value > 0 for value in costs)


@pytest.mark.parametrize(("capability", "gigabytes"), [(75, 320), (80, 1555), (89, 1008), (120, 1792)])
def test_a_card_without_a_table_gets_the_nearest_scaled_by_bandwidth_and_clock(capability, gigabytes):
    origin, costs = _native.cost_table(compute_capability=capability)
    assert origin.startswith("fitted to an NVIDIA H200 on 20") and origin.endswith(
        "scaled by the clocks and bandwidths of both cards"
    )
    card, fitted = _native.fitted_costs(compute_capability=capability)
    assert card == "NVIDIA H200"
    rate = names().index("sliding_rows.memory")
    assert costs[rate] / fitted[rate] == pytest.approx(gigabytes / 4814, rel=0.03)


def test_slower_memory_makes_bound_layers_slower_and_no_others():
    def estimate(capability, problem):
        return _native.alternatives(problem, "sliding_rows", 1, compute_capability=capability)[0][
            "milliseconds"
        ]

    assert estimate(75, MEMORY_BOUND.problem()) > 5 * estimate(90, MEMORY_BOUND.problem())
    tiny = TimedConv(
        (1, 8, 8, 8), (8, 1, 3, 3), "float16", attributes={"group": 8, "pads": [1] * 4}
    ).problem()
    assert estimate(75, tiny) < 2 * estimate(90, tiny)


@needs_compiler
def test_a_card_uses_its_calibration(tmp_path):
    program = """
from convswap import _native
problem = _native.Problem((64, 64, 112, 112), (64, 1, 3, 3), type="float16", group=64, pads=[1] * 4)
tiling, = _native.alternatives(problem, "sliding_rows", 1)
print(_native.cuda_devices()[0]["cost_table"], tiling["milliseconds"], sep="|")
"""
    file = tmp_path / "tuning.txt"

    def run(*lines):
        write(file, *lines)
        result = run_beside_card(program, CONVSWAP_TUNING=file)
        origin, milliseconds = result.stdout.split("|")
        return origin, float(milliseconds)

    problem = _native.calibration_problem
    own = line(problem, "auto", "cuda", device_name="cuda Fake card 0", milliseconds={"auto": 1, "memory": 3})
    plain, calibrated = run(), run(own)
    assert plain[0].startswith("fitted to an NVIDIA H200")
    assert calibrated[0].startswith("calibrated on this card; fitted to an NVIDIA H200")
    assert calibrated[1] > 2 * plain[1]
    for other in (own.replace("card 0", "card 1"), own.replace(_native.__version__, "0.0.9")):
        assert run(other) == plain


@pytest.fixture
def calibrate(monkeypatch, table):
    """Return the module, on whose card memory is 1.5 times and tiled 0.8 times as slow as in the table."""
    module = importlib.import_module("convswap.planning.calibrate")
    for name in ("planning.calibrate", "planning.fitting", "runtime.tuning"):
        importing = importlib.import_module(f"convswap.{name}")
        monkeypatch.setattr(importing, "_native", PlannedCard(CARD))
    monkeypatch.setattr(module, "choose_device", lambda: Device("cuda", "asked for", CARD))
    monkeypatch.setattr(module, "_RULE", module.StoppingRule(1, 1, 0, 1))
    monkeypatch.setattr(TimedConv, "tensors", lambda case: {})
    _, costs = _native.fitted_costs(compute_capability=90)
    real = _native.with_factors(costs, {"memory": 1.5, "tiled": 0.8})

    def sample(case, tensors, algorithm, tiling=0):
        name = _native.alternatives(case.problem(), algorithm, 1, compute_capability=90)[0]["tiling"]
        times = _native.Estimates(case.problem(), algorithm, [name], compute_capability=90).milliseconds(real)
        return lambda runs: times[0]

    monkeypatch.setattr(TimedConv, "sample", sample)
    return module


def test_calibration_finds_how_a_card_differs_and_stores_it(calibrate, tmp_path, capsys):
    file = tmp_path / "factors.json"
    assert main(["calibrate", "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    factors = written["factors"]
    assert factors["memory"] == pytest.approx(1.5, abs=0.1) and factors["tiled"] == pytest.approx(
        0.8, abs=0.05
    )
    others = [factor for name, factor in factors.items() if name not in ("memory", "tiled")]
    assert "channels_last" in factors and len(factors) <= 25
    assert all(0.9 < factor < 1.1 for factor in others)
    assert written["rms_after"] < 0.2 * written["rms_before"]
    (entry,), damage = read_table()
    assert damage == "" and entry.problem == _native.calibration_problem
    assert entry.milliseconds["memory"] == pytest.approx(factors["memory"], rel=1e-3)
    assert "Stored in" in capsys.readouterr().out


def test_without_a_card_there_is_one_line(capsys):
    assert only_line_of_refusal(capsys, "calibrate").startswith("convswap: there is no card")


def test_a_restricted_card_is_not_calibrated(calibrate, monkeypatch):
    restricted = Device("cuda", "asked for", {**CARD, "is_restricted": True})
    monkeypatch.setattr(calibrate, "choose_device", lambda: restricted)
    with pytest.raises(ConvswapError, match="CONVSWAP_COMPUTE_CAPABILITY makes the card an older one"):
        calibrate.calibrate()


def test_a_card_of_each_kind_in_a_cluster_is_calibrated_into_one_table(
    calibrate, monkeypatch, capsys, tmp_path
):
    def enter(name):
        card = PlannedCard({**CARD, "name": name})
        for module in (calibrate, tuning):
            monkeypatch.setattr(module, "_native", card)

    PretendCluster(["card 1", "card 2", "card 1"], enter).connect(monkeypatch, calibrate)
    file = tmp_path / "factors.json"
    assert main(["calibrate", "--ray", "local", "--json", str(file)]) == 0
    assert [entry.device for entry in read_table()[0]] == ["cuda card 1", "cuda card 2"]
    assert len(json.loads(file.read_text())) == 2 and capsys.readouterr().out.count("Stored in") == 2
