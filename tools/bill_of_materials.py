"""The software bill of materials of a wheel: CycloneDX 1.6 in JSON, in .dist-info/sboms by PEP 770.

It names every compiled file of the wheel with its hash, and everything of others that the compiler put into
them. The licences' texts lie in .dist-info/licenses. The packages that pip installs beside convswap are not
shipped in the wheel: METADATA names them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

FILE = "convswap.cdx.json"
MODULE, LIBRARY, KERNELS = "_native.*.so", "libconvswap.so", "ready_made.pack"


def write_bill_of_materials(unpacked: Path, nvrtc: str) -> Path:
    """Write the bill of the wheel in the folder `unpacked`; return its path.

    `nvrtc` is the version of the compiler of the kernels.
    """
    (info,) = unpacked.glob("convswap-*.dist-info")
    path = info / "sboms" / FILE
    path.parent.mkdir(exist_ok=True)
    version = info.name.removeprefix("convswap-").removesuffix(".dist-info")
    path.write_text(json.dumps(bill_of_materials(unpacked, version, nvrtc), indent=1) + "\n")
    return path


def bill_of_materials(unpacked: Path, version: str, nvrtc: str) -> dict[str, Any]:
    """Return the bill as a JSON object."""
    files = [path for path in sorted(unpacked.rglob("*")) if is_compiled(path)]
    parts = _parts_of_others(unpacked, nvrtc)
    package = _component("library", "convswap", version, "MIT", f"pkg:pypi/convswap@{version}")
    contents = {path: [part for part, patterns in parts if any(map(path.match, patterns))] for path in files}
    components = [_file(path, unpacked) for path in files]
    dependencies = [{"ref": package["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}]
    for component, used in zip(components, contents.values(), strict=True):
        dependencies.append({"ref": component["bom-ref"], "dependsOn": [part["bom-ref"] for part in used]})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": package},
        "components": [*components, *(part for part, _ in parts)],
        "dependencies": dependencies,
    }


def is_compiled(path: Path) -> bool:
    """Return whether `path` is a shared object, or the pack of compiled kernels."""
    return path.is_file() and (re.search(r"\.so(\.\d+)*$", path.name) is not None or path.suffix == ".pack")


def _parts_of_others(unpacked: Path, nvrtc: str) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """Return everything that others wrote, with patterns of the files that contain it."""
    (library,) = unpacked.rglob(LIBRARY)
    compiler = re.search(rb"GCC: \([^)]*\) (\d+\.\d+\.\d+)", library.read_bytes())
    gcc = compiler[1].decode() if compiler else "unknown"
    pybind11 = importlib.metadata.version("pybind11")
    runtime = "GPL-3.0-or-later WITH GCC-exception-3.1"
    return [
        (
            _component("library", "pybind11", pybind11, "BSD-3-Clause", f"pkg:pypi/pybind11@{pybind11}"),
            (MODULE,),
        ),
        # The structures of API version 17, which the library asks for by number; no code.
        (_component("library", "onnxruntime C API headers", "1.17", "MIT"), (LIBRARY,)),
        # Templates of libstdc++'s headers and the start-up code of libgcc; both libraries are the system's.
        (_component("library", "libstdc++ and libgcc", gcc, runtime), (MODULE, LIBRARY)),
        (_component("library", "CUDA math functions (libdevice of NVRTC)", nvrtc, None), (KERNELS,)),
    ]


def _component(
    kind: str, name: str, version: str, licence: str | None, purl: str | None = None
) -> dict[str, Any]:
    choice = {"expression": licence} if licence else {"license": {"name": "NVIDIA CUDA Toolkit EULA"}}
    component = {"type": kind, "bom-ref": purl or f"{name}@{version}", "name": name, "version": version}
    return component | {"licenses": [choice]} | ({"purl": purl} if purl else {})


def _file(path: Path, unpacked: Path) -> dict[str, Any]:
    name = path.relative_to(unpacked).as_posix()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "type": "file",
        "bom-ref": f"file:{name}",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "licenses": [{"expression": "MIT"}],
    }
