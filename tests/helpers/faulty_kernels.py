"""Faulty kernels of students.

Each is a file of the lab with one change. `kinds` are the faults that the lab may report for it, on the card
and in the emulation; "refused" is a file that is bad input. `where` is the place in which tests look for the
report: "anywhere"; "card", if the emulation cannot have the fault, or similar kernels show it there in less
time; or "worker", the process with a time limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from convswap.tutorial.lab.scaffold import rung_copy, template

LAUNCH = "grid(B, M, ceil_div(H_out, 16) * ceil_div(W_out, 16)) block(16, 16) shared(0)"
COURSE, CONV = template("course"), template("conv")
SHARED = rung_copy("ladder_04_shared_memory")
PER_IMAGE = rung_copy("ladder_06_block_per_image")
ARRAY = rung_copy("ladder_07_array_of_outputs")
TAIL = "if (p >= H_out || q >= W_out) return;"
SUM = "float sum = 0.0f;"
STORE = "y[((n * M + m) * H_out + p) * W_out + q] = sum;"
TAP = "k[((m * C + c) * K + r) * K + s]"
PIXEL = "x[((n * C + c) * H + p + r) * W + q + s]"


@dataclass(frozen=True)
class Faulty:
    """A faulty kernel: its name, its text, and the faults that the lab may report."""

    name: str
    text: str
    kinds: frozenset[str]
    where: str = "anywhere"


def _changed(text: str, old: str, new: str) -> str:
    assert text.count(old) >= 1, old
    return text.replace(old, new)


def _faulty(name: str, kinds: str, old: str, new: str, text: str = COURSE, where: str = "anywhere") -> Faulty:
    return Faulty(name, _changed(text, old, new), frozenset(kinds.split()), where)


_DEEP = """__device__ float deep(float value, int left) {
  float own[1000];
  own[left % 1000] = value;
  return left <= 0 ? value : deep(own[left % 1000], left - 1) + own[left * 7 % 1000];
}

__global__"""
_HUGE = """template <int kLevel, int kNumber>
struct Huge {
  static constexpr int value = Huge<kLevel - 1, 2 * kNumber>::value ^ Huge<kLevel - 1, 2 * kNumber +
  1>::value;
};
template <int kNumber>
struct Huge<0, kNumber> {
  static constexpr int value = kNumber;
};

__global__"""
_HALVES = _changed(LAUNCH, "block(16, 16)", "block(16, 16, 2)")
_HALF_EACH = f"""float sum = 0.0f;
  for (int c = threadIdx.z; c < C; c += 2) {{
    for (int r = 0; r < K; ++r) {{
      for (int s = 0; s < K; ++s) sum += {PIXEL} * {TAP};
    }}
  }}
  float* const own = y + ((n * M + m) * H_out + p) * W_out + q;
  if (threadIdx.z == 0) *own = sum;
  if (threadIdx.z == 1) *own += sum;
}}
"""

FAULTY = (
    _faulty("a row too many", "outside", "p >= H_out", "p > H_out"),
    _faulty("a column too many", "outside", "q >= W_out", "q > W_out", where="card"),
    _faulty("no test for the last tiles", "outside crash", TAIL, "", where="card"),
    _faulty("a column too few", "unwritten", "q >= W_out", "q >= W_out - 1"),
    _faulty("tail of another size", "unwritten", "p >= H_out", "p >= H_out - H_out % 16", where="card"),
    _faulty("too few blocks", "unwritten", LAUNCH, "grid(B, M) block(16, 16)", where="card"),
    _faulty("one image alone", "unwritten", LAUNCH, LAUNCH.replace("grid(B,", "grid(1,"), where="card"),
    _faulty("nothing written", "unwritten", STORE, "if (sum == 1234.5f) y[0] = sum;", where="card"),
    _faulty("height for width", "wrong", "p + r) * W + q", "p + r) * H + q", where="card"),
    _faulty("filter turned over", "wrong", "* K + r) * K + s]", "* K + s) * K + r]"),
    _faulty(
        "filter back to front",
        "wrong",
        "* K + r) * K + s]",
        "* K + K - 1 - r) * K + K - 1 - s]",
        where="card",
    ),
    _faulty("one channel alone", "wrong", "c < C;", "c < 1;", where="card"),
    _faulty("a row of the filter too many", "wrong", "r < K;", "r <= K;"),
    _faulty("wrong image", "wrong", "((n * C + c) * H", "((n + c) * H", where="card"),
    _faulty("a sum that does not begin at zero", "wrong", SUM, "float sum = 0.01f;", where="card"),
    _faulty(
        "division by nothing",
        "wrong",
        STORE,
        STORE.replace("= sum", "= sum / (float(C) - float(C))"),
        where="card",
    ),
    _faulty("writes its input", "outside", SUM, f"const_cast<float*>(x)[0] = 0.0f;\n  {SUM}"),
    _faulty(
        "writes its filters", "outside", SUM, f"const_cast<float*>(k)[0] += 1.0f;\n  {SUM}", where="card"
    ),
    _faulty("before the beginning", "outside", STORE, STORE.replace("q]", "q - 1]")),
    _faulty("far away", "crash", SUM, f"y[(1LL << 36) + p] = 1.0f;\n  {SUM}"),
    _faulty(
        "null pointer",
        "crash",
        SUM,
        f"float* volatile nowhere = nullptr;\n  nowhere[p] = 1.0f;\n  {SUM}",
        where="card",
    ),
    _faulty("missing barrier", "wrong race", "  __syncthreads();\n", "", SHARED),
    _faulty(
        "missing second barrier",
        "wrong race",
        "    __syncthreads();\n    for",
        "    for",
        PER_IMAGE,
        where="card",
    ),
    _faulty(
        "barrier of a part",
        "crash time wrong",
        "  __syncthreads();",
        "  if (threadIdx.x < 16) __syncthreads();",
        SHARED,
    ),
    _faulty(
        "return before a barrier",
        "crash time wrong unwritten",
        "  __syncthreads();",
        "  if (threadIdx.y > 2) return;\n  __syncthreads();",
        SHARED,
        "card",
    ),
    _faulty(
        "too little shared memory",
        "outside crash wrong",
        "shared(4 * C * (H * W + K * K))",
        "shared(4 * C * H * W)",
        SHARED,
    ),
    _faulty(
        "uninitialised shared memory",
        "wrong race",
        SUM,
        "__shared__ float sums[256];\n  float& sum = sums[threadIdx.y * 16 + threadIdx.x];",
    ),
    Faulty(
        "two threads add",
        _changed(COURSE, LAUNCH, _HALVES).partition(SUM)[0] + _HALF_EACH,
        frozenset({"race", "wrong"}),
    ),
    _faulty(
        "misaligned vector load",
        "crash",
        SUM,
        "float sum = reinterpret_cast<const float4*>(x + n * C * H * W + p * W + q)->x * 0.0f;",
    ),
    _faulty(
        "infinite loop",
        "time",
        SUM,
        f"volatile int stop = 0;\n  while (stop == 0) {{\n  }}\n  {SUM}",
        where="card",
    ),
    Faulty(
        "stack overflow",
        _changed(_changed(COURSE, "__global__", _DEEP), "= sum;", "= deep(sum, 200000);"),
        frozenset({"crash"}),
    ),
    _faulty("trap", "crash", SUM, f"if (C > 0) __trap();\n  {SUM}", where="card"),
    _faulty("assertion", "crash", SUM, f"assert(C > 100);\n  {SUM}", where="card"),
    _faulty(
        "printf flood",
        "output",
        SUM,
        f'for (int i = 0; i < 500; ++i) printf("thread %d says %d\\n", threadIdx.x, i);\n  {SUM}',
        where="card",
    ),
    _faulty("too many threads", "launch", "block(16, 16)", "block(64, 32)"),
    _faulty("too much shared memory", "launch", "shared(0)", "shared(300000)"),
    _faulty("no blocks", "launch", LAUNCH, "grid(B, M, H_out / 16) block(16, 16)"),
    _faulty("a launch that divides by zero", "launch", LAUNCH, "grid(B / (C - 1), M) block(16, 16)"),
    _faulty(
        "too much declared shared memory",
        "compile",
        SUM,
        "__shared__ volatile float all[20000];\n  all[threadIdx.x] = 0.0f;\n  float sum = all[threadIdx.x];",
    ),
    _faulty("too many registers for a block", "crash launch", "block(192)", "block(1024)", ARRAY, "card"),
    _faulty("wrong signature", "compile", "int W, int K)", "int W, int K, int G)"),
    _faulty("another name", "compile", "void forward(", "void forwards("),
    _faulty("no kernel", "compile", "__global__ void", "/* __global__ */ void"),
    _faulty("syntax error", "compile", "float sum = 0.0f;", "float sum = 0.0f"),
    _faulty("unknown name", "compile", "c < C;", "c < channels;"),
    _faulty(
        "header of the host",
        "compile",
        '#include "convswap/lab.h"',
        '#include "convswap/lab.h"\n#include <stdio.h>',
    ),
    Faulty(
        "huge compile",
        _changed(_changed(COURSE, "__global__", _HUGE), SUM, "float sum = 0.0f * Huge<20, 0>::value;"),
        frozenset({"time", "compile"}),
        "worker",
    ),
    _faulty("no launch line", "refused", "// launch:", "// start:"),
    _faulty("a launch of unknown sizes", "refused", LAUNCH, "grid(N, M) block(16, 16)"),
    _faulty("no bias", "wrong", "b == nullptr ? 0.0f : b[m]", "0.0f", CONV, where="card"),
    _faulty("no stride", "wrong", "p * conv.stride_h", "p", CONV, where="card"),
    _faulty("no padding", "wrong", " - conv.pad_left", "", CONV),
    _faulty("no dilation", "wrong", "r * conv.dilation_h", "r", CONV, where="card"),
    _faulty("no groups", "wrong outside crash", "first_channel + c)", "c)", CONV, where="card"),
)
assert len(FAULTY) >= 40
