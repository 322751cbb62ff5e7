"""Wrong kernels are diagnosed without a card: by NVRTC, by their launch line, or in emulation."""

from __future__ import annotations

import pytest
from convswap import _native
from convswap.errors import ConvswapError
from convswap.tutorial.lab.checks import cases_for
from convswap.tutorial.lab.emulation_check import (
    MAX_SHARED_BYTES,
    NotTranslatedError,
    build_host_program,
    check_in_emulation,
    find_host_compiler,
)
from convswap.tutorial.lab.kernel import compile_kernel, read_kernel
from convswap.tutorial.lab.result import Fault
from convswap.tutorial.lab.scaffold import INTERFACES, rung_copy, template
from faulty_kernels import COURSE, FAULTY, STORE, SUM, Faulty
from ladder_sources import PAGES

WHY_NO_COMPILER = _native.kernel_compiler()["why_not"]
COMPILER = find_host_compiler()
FAULTS_IN_EMULATION = [faulty for faulty in FAULTY if faulty.where == "anywhere"]
# Time that a loaded host may add to a kernel that ends at once.
SECONDS = 5.0
pytestmark = [
    pytest.mark.skipif(bool(WHY_NO_COMPILER), reason=WHY_NO_COMPILER or "NVRTC is there"),
    pytest.mark.skipif(COMPILER is None, reason="there is no g++"),
]


def fault_in(text: str, seconds: float = SECONDS) -> Fault | None:
    kernel = read_kernel(text)
    fault = compile_kernel(kernel, 90)
    if fault is not None:
        return fault
    cases = cases_for(kernel)
    for case in cases:
        try:
            kernel.source.launch(case.problem, MAX_SHARED_BYTES)
        except ConvswapError as error:
            return Fault("launch", str(error))
    assert COMPILER is not None
    return check_in_emulation(kernel, cases, COMPILER, seconds)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("faulty", FAULTS_IN_EMULATION, ids=lambda faulty: faulty.name)
def test_a_fault_is_one_paragraph(faulty: Faulty) -> None:
    if "refused" in faulty.kinds:
        with pytest.raises(ConvswapError, match=r"kernel\.cu"):
            read_kernel(faulty.text)
        return
    fault = fault_in(faulty.text, 1.0 if "time" in faulty.kinds else SECONDS)
    assert fault is not None, "it was found right"
    assert fault.kind in faulty.kinds, fault.text
    assert "kernel.cu" in fault.text and "Traceback" not in fault.text
    assert fault.kind == "compile" or "\n" not in fault.text
    if fault.kind == "wrong":
        assert "expected" in fault.text and "got" in fault.text and len(fault.detail["index"]) == 4
    if faulty.name == "unknown name":
        line = 1 + faulty.text[: faulty.text.index("channels;")].count("\n")
        assert f"kernel.cu({line})" in fault.text and "\n" + " " * 4 in fault.text and "^" in fault.text
        assert fault.detail["lines"] == [line]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*INTERFACES, "ladder_09_constants"])
def test_scaffolds_are_right(name: str) -> None:
    assert fault_in(template(name) if name in INTERFACES else rung_copy(name)) is None


# A kernel with a block for each output, and the parts in which its right forms differ.
REDUCTION = """#include "convswap/lab.h"
// launch: grid(B, M, H_out * W_out) block({threads})
__global__ void forward(float* y, const float* x, const float* k, int B, int M, int C, int H, int W, int K) {{
  const int H_out = H - K + 1, W_out = W - K + 1, n = blockIdx.x, m = blockIdx.y;
  const int p = blockIdx.z / W_out, q = blockIdx.z % W_out;
  {entry}
  float sum = 0.0f;
  for (int i = threadIdx.x; i < C * K * K; i += 16) {{
    sum += x[((n * C + i / (K * K)) * H + p + i / K % K) * W + q + i % K] * k[m * C * K * K + i];
  }}
  {reduction}
  if (threadIdx.x == 0) y[((n * M + m) * H_out + p) * W_out + q] = sum;
}}
"""
SHUFFLES = "for (int d = 8; d > 0; d /= 2) sum += __shfl_down_sync(0xffffu, sum, d);"
BARRIER = (
    "__shared__ float sums[16];\n  sums[threadIdx.x] = sum;\n  __syncthreads();\n"
    "  for (int i = 1; threadIdx.x == 0 && i < 16; ++i) sum += sums[i];"
)
RIGHT = {
    "half a warp": {"threads": 16, "entry": "", "reduction": SHUFFLES},
    "lanes of a mask": {
        "threads": 48,
        "entry": "__syncwarp();",
        "reduction": f"if (threadIdx.x < 16) {{\n  {SHUFFLES}\n  }}",
    },
    "threads that have ended": {
        "threads": 32,
        "entry": "if (threadIdx.x >= 16) return;",
        "reduction": BARRIER,
    },
    "code for cards alone": {
        "threads": 16,
        "entry": "",
        "reduction": f"#ifdef __CUDA_ARCH__\n  {SHUFFLES}\n#endif",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("parts", RIGHT.values(), ids=RIGHT)
def test_what_a_card_computes_is_right(parts: dict[str, object]) -> None:
    assert fault_in(REDUCTION.format(**parts), 4 * SECONDS) is None


def test_a_mask_without_the_lane_is_a_fault() -> None:
    parts = RIGHT["half a warp"] | {"reduction": SHUFFLES.replace("0xffffu", "0xffu")}
    fault = fault_in(REDUCTION.format(**parts))
    assert fault is not None and "a mask without its own lane" in fault.text


@pytest.mark.parametrize("place", [-16_000, 16_000])
def test_writes_are_found_far_outside_of_a_tensor(place: int) -> None:
    fault = fault_in(COURSE.replace(STORE, f"{STORE}\n  if (n + m + p + q == 0) y[{place}] = 1.0f;"))
    assert fault is not None and "outside of y" in fault.text


def test_every_rung_is_copied_or_refused_with_the_reason() -> None:
    assert {bool(page.launch) for page in PAGES} == {True, False}
    for page in PAGES:
        if page.launch:
            text = rung_copy(page.name)
            # No name of the rung's own code remains, and the launch fits the interface.
            assert "conv." not in text and "Convolution" not in text
            assert read_kernel(text).interface == "course"
            continue
        with pytest.raises(
            ConvswapError, match=f"{page.name} cannot be copied into a file of one kernel: it"
        ):
            rung_copy(page.name)


def test_names_unknown_to_the_emulation_are_reported(tmp_path) -> None:
    kernel = read_kernel(COURSE.replace(SUM, SUM + ' asm volatile("mov.u32 %0, %%clock;" : "=f"(sum));'))
    assert COMPILER is not None
    with pytest.raises(NotTranslatedError, match="error"):
        build_host_program(kernel, COMPILER, tmp_path)


def test_compiler_that_fortifies_by_itself_is_no_obstacle(tmp_path) -> None:
    """Some distributions' longjmp aborts a program whose fibers jump to each other."""
    compiler = tmp_path / "fortifying"
    compiler.write_text(f'#!/bin/sh\nexec {COMPILER} -D_FORTIFY_SOURCE=2 "$@"\n')
    compiler.chmod(0o755)
    program = build_host_program(read_kernel(rung_copy("ladder_04_shared_memory")), str(compiler), tmp_path)
    assert b"longjmp_chk" not in program.read_bytes()
