"""Kernel names are demangled."""

from __future__ import annotations

import ctypes

import pytest
from convswap.profiling import result as module
from convswap.profiling.result import demangle


@pytest.fixture
def empty_caches():
    """Clear the caches of demangled names and of the demangler."""
    for function in (module.demangle, module._demangler, module._free):
        function.cache_clear()
    yield
    for function in (module.demangle, module._demangler, module._free):
        function.cache_clear()


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("_Z4tickPfi", "tick(float*, int)"),
        ("_ZN8convswap4cuda5naiveIfLi3EEEvPKT_i", "void convswap::cuda::naive<float, 3>(float const*, int)"),
        ("_ZN12_GLOBAL__N_14copyEv", "(anonymous namespace)::copy()"),
        ("sm90_xmma_fprop_implicit_gemm_tf32f32", "sm90_xmma_fprop_implicit_gemm_tf32f32"),
        ("_Znonsense", "_Znonsense"),
        ("", ""),
    ],
)
def test_names_of_cpp_become_readable_and_others_stay(name, readable):
    assert demangle(name) == readable


def test_a_system_without_the_library_keeps_the_raw_names(empty_caches, monkeypatch):
    def none(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", none)
    assert demangle("_Z4tickPfi") == "_Z4tickPfi"
