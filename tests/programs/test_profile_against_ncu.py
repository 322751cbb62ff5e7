"""`benchmarks/profile_against_ncu.py`: the profiler's times and those of Nsight Compute."""

from __future__ import annotations

import json
import sys

import pytest
from build_tools import script

NCU_PRINTS = """\
==PROF== Connected to process 7
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","_Z4longPf","gpu__time_duration.sum","ns","5,000,000"
"1","plain","gpu__time_duration.sum","ns","7,000"
"2","_Z4longPf","gpu__time_duration.sum","ns","1,200,000"
"3","plain","gpu__time_duration.sum","ns","900"
"4","_Z4longPf","gpu__time_duration.sum","ns","1,000,000"
"5","plain","gpu__time_duration.sum","ns","1,100"
"""


@pytest.fixture
def tool():
    return script("profile_against_ncu")


def sides(microseconds):
    """Return a profile of two sides, each with one long and one short kernel."""
    long = {"name": "long(float*)", "avg_ns": microseconds * 1e3, "nodes": ["conv1"]}
    short = {"name": "short", "avg_ns": 99e3, "nodes": ["tanh1"]}
    return {side: {"profiling_result": [long, short]} for side in ("default", "convswap")}


def test_times_of_ncu_are_means_of_the_timed_runs_by_demangled_name(tool, monkeypatch):
    commands = []

    def run(command, variables=None):
        commands.append(command)
        return NCU_PRINTS

    monkeypatch.setattr(tool, "run", run)
    # The first of three runs is the last warm-up.
    assert tool.by_ncu("ece408-2019fa", "default", 2) == {"long(float*)": 1100.0, "plain": 1.0}
    (command,) = commands
    # Nsight Compute must not change the clock or flush caches, or its times would be those of another card.
    assert "--clock-control none --cache-control none" in " ".join(command)
    assert command[-4:] == ["--run", "ece408-2019fa", "default", "2"]


def test_long_kernels_get_a_row_with_both_profiles_and_ncu(tool, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool, "by_profile", lambda network, runs, blocking: sides(1000 if blocking else 1100))
    monkeypatch.setattr(
        tool, "by_ncu", lambda network, side, runs: {"long(float*)": 1000.0} if side == "default" else {}
    )
    monkeypatch.setattr(tool.shutil, "which", lambda name: name)
    monkeypatch.setattr(tool, "choose_device", lambda name: None)
    monkeypatch.setattr(tool, "environment", lambda device: {"card": "none"})
    file = tmp_path / "new" / "found.json"
    monkeypatch.setattr(sys, "argv", ["profile_against_ncu", "--json", str(file), "ece408-2019fa"])
    assert tool.main() == 0
    default, ours = json.loads(file.read_text())["rows"]
    assert default == {
        "network": "ece408-2019fa",
        "side": "default",
        "kernel": "long(float*)",
        "nodes": ["conv1"],
        "profile_us": 1100.0,
        "profile_apart_us": 1000.0,
        "ncu_us": 1000.0,
    }
    assert (ours["side"], ours["ncu_us"]) == ("convswap", None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:5] == ["1100.0", "1000.0", "1000.0", "+10.0%", "+0.0%"]
    assert lines[2].split()[:4] == ["1100.0", "1000.0", "-", "convswap"]


def test_without_nsight_compute_one_line_says_so(tool, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    monkeypatch.setattr(
        sys, "argv", ["profile_against_ncu", "--json", str(tmp_path / "found.json"), "ece408-2019fa"]
    )
    assert tool.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("there is no ncu; install Nsight Compute")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["found.json", "ece408-2019fb"], "unknown network 'ece408-2019fb'"),
        (["found.json", "ece408-2019fa", "--runs", "0"], "--runs must be at least 1, but 0 was given"),
        ([".", "ece408-2019fa"], "it is a folder; name a file"),
    ],
    ids=str,
)
def test_wrong_input_is_refused_before_anything_runs(arguments, message, tool, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool.shutil, "which", lambda name: name)
    monkeypatch.setattr(tool, "choose_device", lambda name: None)
    monkeypatch.setattr(tool, "rows_of", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["profile_against_ncu", "--json", *arguments])
    assert tool.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
