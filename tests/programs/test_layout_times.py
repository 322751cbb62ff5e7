"""benchmarks/layouts.py: networks by default, fused, and in NHWC."""

from __future__ import annotations

from build_tools import run_script


def test_an_unknown_precision_is_refused_in_one_line():
    result = run_script("layouts", "--precision", "tf32,float32")
    assert result.returncode == 2
    assert result.stderr == "--precision float32: expected some of float16, tf32, ieee\n"
