"""NVRTC compiles every family for each kind of card that it supports, on machines without a card."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from convswap import _native

COMPILER = _native.kernel_compiler()
# One of 8.0, 8.6 and 8.9, and one of 10.0 and 12.0: no code distinguishes them (tested below).
CAPABILITIES = (75, 80, 90, 120)
FAMILIES = {family["header"]: family for family in _native.kernel_families()}
# SASS instructions of the tensor cores, by header.
INSTRUCTIONS = {
    "cuda/channels_last/kernel.cuh": r"\b[HI]GMMA\.",
    "cuda/channels_last_mma/kernel.cuh": r"\b[HI]MMA\.",
    "cuda/channels_last_mma/kernel_75.cuh": r"\b[HI]MMA\.",
    "cuda/few_channels/kernel.cuh": r"\bHMMA\.",
    "cuda/implicit_gemm/kernel.cuh": r"\bHGMMA\.",
    "cuda/many_channels/kernel.cuh": r"\bHGMMA\.",
    "cuda/many_channels/mma_kernel.cuh": r"\bHMMA\.",
    "cuda/pointwise/kernel.cuh": r"\bHGMMA\.",
    "cuda/separable/kernel.cuh": r"\bHMMA\.",
    "cuda/sliced_k/kernel.cuh": r"\bHMMA\.",
    "cuda/toeplitz/kernel.cuh": r"\bHGMMA\.",
    "cuda/tutorial/ladder/14_tensor_cores.cuh": r"\bHMMA\.",
}
# Their other kernels.
WITHOUT_TENSOR_CORES = "::(prepare|prepare_codes|combine|unaligned|sum_padding|write_windows)<"

# Constant bank with the addresses of global variables. NVRTC creates such variables for aggregates, `{0u,
# 1u}`, and for returned `{}`; all threads of a block then wait for memory.
GLOBAL_VARIABLES = "c[0x4]"
# Distinguishes instances that take different code paths of a family's template.
PATHS = {
    "cuda/pointwise/kernel.cuh": lambda arguments: arguments[-1] != "0",  # chunks wait in slots
    "cuda/few_channels/kernel.cuh": lambda arguments: arguments[-1],  # y is NCHW or NHWC
}
# All families have kernels for this capability. Only these are disassembled, which takes as long as
# compiling.
DISASSEMBLED = 90

pytestmark = pytest.mark.skipif(bool(COMPILER["why_not"]), reason=COMPILER["why_not"] or "NVRTC is there")


def capabilities_of(family: dict) -> list[int]:
    first, only_first = family["least_capability"], family["is_for_it_alone"]
    return [each for each in CAPABILITIES if (each == first if only_first else each >= first)]


def distinct_instances(header: str) -> list[str]:
    """Return an instance for each data format, the first argument, and each code path."""
    first: dict[tuple, str] = {}
    for instance in FAMILIES[header]["instances"]:
        arguments = instance.strip(">").split(", ")
        path = PATHS[header](arguments) if header in PATHS else None
        first.setdefault((arguments[0], path), instance)
    return list(first.values())


def kernels_to_compile() -> Iterator[tuple[str, str, int]]:
    """Yield header, instance and compute capability: a family's first instance for every kind of card.

    Cards differ in the instructions that a kernel may use, alike in all data formats but bfloat16, for which
    cards below 8.0 have none, and codes, whose mma is another one there. tests/programs/test_fake_card.py
    compiles the rungs for 7.5.
    """
    for header, family in FAMILIES.items():
        if "/ladder/" in header:
            if header in INSTRUCTIONS:
                yield header, family["instances"][0], DISASSEMBLED
            continue
        for number, instance in enumerate(distinct_instances(header)):
            for capability in capabilities_of(family):
                lacks_its_type = "<BFloat16" in instance and capability < 80
                has_its_mma = "kernel_75<" in instance and capability == 75
                if number == 0 or lacks_its_type or has_its_mma:
                    yield header, instance, capability


TO_COMPILE = list(kernels_to_compile())
# The other data formats and code paths. They take two cores a minute, so only machines with a card compile
# them.
OTHERS = [
    (header, instance)
    for header in FAMILIES
    if "/ladder/" not in header
    for instance in distinct_instances(header)[1:]
]


def disassembler() -> str:
    """Return the path of nvdisasm, from NVIDIA's package or a toolkit; skips if there is none."""
    package = importlib.util.find_spec("nvidia")
    for folder in [] if package is None else package.submodule_search_locations or []:
        for program in Path(folder).glob("cu*/bin/nvdisasm"):
            return str(program)
    program = shutil.which("nvdisasm") or shutil.which("/usr/local/cuda/bin/nvdisasm")
    if program is None:
        pytest.skip("there is no nvdisasm: pip install nvidia-cuda-nvdisasm")
    return program


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("header", "instance", "capability"), TO_COMPILE, ids=lambda value: str(value))
def test_a_kernel_of_each_family_compiles_for_each_card(
    header: str, instance: str, capability: int, tmp_path: Path
) -> None:
    check_code(header, instance, capability, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize(("header", "instance"), OTHERS)
def test_a_kernel_of_each_format_compiles(header: str, instance: str, tmp_path: Path) -> None:
    check_code(header, instance, DISASSEMBLED, tmp_path)


def check_code(header: str, instance: str, capability: int, folder: Path) -> None:
    """Compile a kernel. For 9.0 assert that it uses the tensor cores and reads no global variables."""
    code = _native.compile_kernel(instance, capability)
    assert code.startswith(b"\x7fELF")
    if capability != DISASSEMBLED:
        return
    file = folder / "kernel.cubin"
    file.write_bytes(code)
    shown = subprocess.run([disassembler(), file], capture_output=True, text=True, check=True).stdout
    if header in INSTRUCTIONS and not re.search(WITHOUT_TENSOR_CORES, instance):
        assert re.search(INSTRUCTIONS[header], shown)
    if "/ladder/" not in header:
        assert GLOBAL_VARIABLES not in shown


def test_every_family_is_compiled_for_the_card_whose_kernels_are_disassembled() -> None:
    disassembled = {header for header, _, capability in TO_COMPILE if capability == DISASSEMBLED}
    assert disassembled == {
        header for header in FAMILIES if "/ladder/" not in header or header in INSTRUCTIONS
    }
    assert {header for header, _, _ in TO_COMPILE} >= {
        header for header in FAMILIES if "/ladder/" not in header
    }


def test_code_distinguishes_no_other_cards() -> None:
    conditions = set()
    for path in (Path(__file__).resolve().parents[2] / "custom_op").rglob("*"):
        if path.suffix in (".h", ".cuh"):
            conditions |= set(
                re.findall(r"__CUDA_ARCH__ *(\W+ *\d+)|(__CUDA_ARCH_\w+[A-Z])\b", path.read_text())
            )
    compared = {number or name for number, name in conditions}
    assert compared == {"< 800", ">= 800", ">= 900", "__CUDA_ARCH_FEAT_SM90_ALL"}


def test_every_header_with_kernels_is_a_family() -> None:
    folder = Path(__file__).resolve().parents[2] / "custom_op"
    headers = {
        str(path.relative_to(folder))
        for path in (folder / "cuda").rglob("*.cuh")
        if "__global__" in path.read_text() and "ladder" not in path.parts and path.name != "lab.h"
    }
    headers |= {
        str(path.relative_to(folder)) for path in (folder / "cuda" / "tutorial" / "ladder").glob("[01]*.cuh")
    }
    assert headers == set(FAMILIES)


def test_instances_are_listed_once() -> None:
    instances = [instance for family in FAMILIES.values() for instance in family["instances"]]
    assert len(instances) == len(set(instances)) > 200
