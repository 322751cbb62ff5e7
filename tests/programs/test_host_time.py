"""benchmarks/host_time.py: what a node costs the host."""

from __future__ import annotations

import json

import pytest
from build_tools import run_script

pytestmark = pytest.mark.extended


def test_every_chain_has_a_time_for_each_side(tmp_path):
    file = tmp_path / "new" / "host.json"
    answer = run_script("host_time", file, "--device", "cpu")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(file.read_text())
    assert found["device"] == "cpu"
    assert [row["op"] for row in found["rows"]] == ["Relu", "depthwise", "pointwise"]
    assert [list(row["us"]) for row in found["rows"]] == [["default"]] + [["default", "convswap"]] * 2
    # No node of 512 elements takes a millisecond; a busy machine may make the longer chain the faster.
    assert all(0 < abs(each) < 1000 for row in found["rows"] for each in row["us"].values())


def test_a_device_that_is_not_there_is_told_in_a_line(tmp_path):
    answer = run_script("host_time", tmp_path / "host.json", "--device", "gpu")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("unknown device 'gpu'") and "Traceback" not in answer.stderr
