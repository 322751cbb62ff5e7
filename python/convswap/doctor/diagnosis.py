"""What is installed on this machine, what is missing, and what to type to get it."""

from __future__ import annotations

import importlib.metadata
import io
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.data import datasets
from convswap.errors import INSTALL_CPU, INSTALL_CUDA, ConvswapError
from convswap.runtime.cards import cuda_cards, driver_of, nvidia_smi, why_no_card
from convswap.runtime.library import INSTALLED, library_path, register
from convswap.runtime.packages import (
    INSTALL_CUPTI,
    PACKAGE,
    installed_version,
    newer_than_driver,
    why_broken,
    why_not_for,
    why_not_importable,
)

OLDEST_PYTHON = (3, 11)
OLDEST_ONNXRUNTIME = (1, 17)
# Every package on PyPI that installs the module onnxruntime.
ONNXRUNTIME_PACKAGES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
)
CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
OPTIONAL_PACKAGES = ("torch",)
_MEND_CUDA = "run nvidia-smi, which tells of each card; restart the machine, or install the driver anew"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    `ok` is True where it works, False where this machine needs it and it does not, None where nothing on this
    machine needs it. `advice` says what to type to change that; "" where there is nothing to do.
    """

    name: str
    ok: bool | None
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Card:
    """An NVIDIA card: its name, its compute capability without the dot (90 for 9.0), and its driver."""

    name: str
    compute_capability: int
    driver: str


def diagnose() -> list[Finding]:
    """Look at everything that convswap uses on this machine; nothing is changed and no network is used."""
    broken = why_broken()
    onnxruntime = None if broken else _import_onnxruntime()
    native = _import_native()
    cards = _cards(native)
    return [
        *_system(),
        *(_broken(broken, bool(cards)) if broken else _onnxruntime(onnxruntime, bool(cards))),
        *_library(onnxruntime, native),
        *_card_findings(cards, native),
        *_cuda_provider(onnxruntime, native, cards),
        *_data(),
        *_tuning_table(),
        *_optional_packages(),
        _cupti(native),
    ]


def all_needed_ok(findings: Sequence[Finding]) -> bool:
    """Return whether everything works that this machine needs."""
    return all(finding.ok is not False for finding in findings)


def print_doctor(findings: Sequence[Finding], console: Console) -> None:
    """Print a row for each finding, and under it what to do."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    marks = {True: ("ok", "green"), False: ("MISSING", "bold red"), None: ("-", "dim")}
    for finding in findings:
        mark, style = marks[finding.ok]
        table.add_row(Text(mark, style), Text(finding.name), Text(finding.found))
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", "bold" if finding.ok is False else "dim"))
    console.print(table)
    missing = [finding.name for finding in findings if finding.ok is False]
    if missing:
        console.print(Text(f"To be mended: {', '.join(missing)}."))
    else:
        console.print(Text("All that this machine needs is there."))


def _import_onnxruntime() -> ModuleType | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    return onnxruntime


def _import_native() -> ModuleType | None:
    try:
        from convswap import _native
    except ImportError:
        return None
    return _native


def _system() -> Iterator[Finding]:
    python = f"{platform.python_version()} at {sys.executable}"
    new_enough = sys.version_info >= OLDEST_PYTHON
    advice = "install Python {}.{} or newer and make a new environment with it".format(*OLDEST_PYTHON)
    yield Finding("Python", new_enough, python, "" if new_enough else advice)
    system = f"{platform.system()} {platform.machine()}"
    known = system == "Linux x86_64"
    yield Finding("system", known, platform.platform(), "" if known else "convswap runs on Linux x86-64")
    try:
        version = importlib.metadata.version("convswap")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("convswap", False, f"{INSTALLED}, not installed", "pip install .")
        return
    yield Finding("convswap", True, f"{version} at {INSTALLED}")


def _broken(reason: str, has_card: bool) -> Iterator[Finding]:
    """Say what is wrong with an onnxruntime that cannot be used, and how to install it anew."""
    install = INSTALL_CUDA if has_card else INSTALL_CPU
    packages = _onnxruntime_packages()
    # pip leaves alone what it takes for installed.
    remove = f"pip uninstall --yes {' '.join(packages)}, then " if packages else ""
    yield Finding("onnxruntime", False, f"broken: {reason}", remove + install)


def _onnxruntime(onnxruntime: ModuleType | None, has_card: bool) -> Iterator[Finding]:
    install = INSTALL_CUDA if has_card else INSTALL_CPU
    if onnxruntime is None:
        yield Finding("onnxruntime", False, "not installed", install)
        return
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    new_enough = version >= OLDEST_ONNXRUNTIME
    found = f"{onnxruntime.__version__} at {Path(str(onnxruntime.__file__)).parent}"
    oldest = "{}.{}".format(*OLDEST_ONNXRUNTIME)
    yield Finding("onnxruntime", new_enough, found, "" if new_enough else f"{oldest} is needed: {install} -U")
    packages = _onnxruntime_packages()
    if len(packages) > 1:
        # In one folder each overwrote files of the other; in two, the first on the path is imported whole.
        in_one_folder = len(set(packages.values())) < len(packages)
        remove = f"pip uninstall --yes {' '.join(packages)}, then {install}"
        yield Finding(
            "onnxruntime packages",
            False if in_one_folder else None,
            f"{' and '.join(packages)} are installed, and both are the module onnxruntime",
            remove if in_one_folder else f"the version above is the one in use; to have one alone: {remove}",
        )
    providers = onnxruntime.get_available_providers()
    complete = CUDA_PROVIDER in providers or not has_card
    advice = "" if complete else f"pip uninstall --yes {' '.join(packages)}, then {INSTALL_CUDA}"
    yield Finding("providers", complete, ", ".join(providers), advice)


def _onnxruntime_packages() -> dict[str, str]:
    """Return the installed packages that hold the module onnxruntime, and the folder of each."""
    packages = {}
    for name in ONNXRUNTIME_PACKAGES:
        try:
            packages[name] = str(importlib.metadata.distribution(name).locate_file(""))
        except importlib.metadata.PackageNotFoundError:
            continue
    return packages


def _library(onnxruntime: ModuleType | None, native: ModuleType | None) -> Iterator[Finding]:
    try:
        path = library_path()
    except ConvswapError as error:
        yield Finding("op library", False, str(error), "make, or pip install .")
        return
    if native is None:
        yield Finding("op library", False, "convswap._native cannot be imported", "make, or pip install .")
    if onnxruntime is None:
        yield Finding("op library", None, f"{path}, not tried without onnxruntime")
        return
    wrong = _what_fails(onnxruntime, "convswap", CPU_PROVIDER)
    if wrong:
        yield Finding("op library", False, wrong, "make clean, then make; or pip install --force-reinstall .")
        return
    yield Finding("op library", True, f"{path} computes on the CPU")


def _card_findings(cards: Sequence[Card], native: ModuleType | None) -> Iterator[Finding]:
    if not cards:
        _, reason = _cuda_cards(native)
        nothing = "no NVIDIA card or driver: everything runs on the CPU"
        yield Finding("card", False if reason else None, reason or nothing, _MEND_CUDA if reason else "")
    for card in cards:
        built = f"compute capability {card.compute_capability / 10:.1f}"
        yield Finding("card", True, f"{card.name}, {built}, driver {card.driver}")
    if native is None:
        return
    yield from _kernel_findings(cards, native)
    for card in cards:
        problem = native.Problem((1, 1, 8, 8), (1, 1, 3, 3))
        capability = card.compute_capability
        reason = native.why_not(problem, "few_channels", "cuda", compute_capability=capability)
        if reason:
            choice = native.choose(problem, "cuda", compute_capability=capability)
            yield Finding(
                "algorithms", None, f"few_channels cannot be used: {reason}; {choice} is used instead"
            )


def _kernel_findings(cards: Sequence[Card], native: ModuleType) -> Iterator[Finding]:
    """What compiles kernels for the cards, and where they are kept."""
    compiler = native.kernel_compiler()
    if compiler["why_not"]:
        yield Finding("kernel compiler", False if cards else None, compiler["why_not"])
    else:
        yield Finding("kernel compiler", True, f"NVRTC {compiler['version']}, {compiler['path']}")
    ready = native.ready_made_kernels()
    yield Finding("ready-made kernels", True if ready else None, _told_ready(ready))
    store = native.kernel_store()
    if store["unused"]:
        where = f"{store['folder']} is not used: " if store["folder"] else ""
        yield Finding("kernel store", None, f"{where}{store['unused']}; kernels are compiled by each process")
    else:
        size = f"{store['bytes'] / 1e6:.1f} MB"
        yield Finding("kernel store", True, f"{store['folder']} has {store['kernels']} kernels, {size}")


def _told_ready(kernels: Sequence[tuple[str, int]]) -> str:
    if not kernels:
        return "none beside the library; each kernel is compiled when a model first needs it"
    cards = ", ".join(f"{each / 10:.1f}" for each in sorted({capability for _, capability in kernels}))
    return f"{len(kernels)} beside the library, for compute capability {cards}"


def _cuda_provider(
    onnxruntime: ModuleType | None, native: ModuleType | None, cards: Sequence[Card]
) -> Iterator[Finding]:
    """Try both ops on the card, where the CUDA provider is installed."""
    if not cards or onnxruntime is None or CUDA_PROVIDER not in onnxruntime.get_available_providers():
        return
    if native is not None:
        wrong = why_no_card(native) or _what_fails(onnxruntime, "convswap", CUDA_PROVIDER)
        yield Finding(
            "convswap on CUDA", not wrong, wrong or "computes on the card", INSTALL_CUDA if wrong else ""
        )
    wrong = _what_fails(onnxruntime, "", CUDA_PROVIDER)
    needed_for = "only the default provider, which compare sets against convswap, needs cuDNN and cuBLAS"
    yield Finding(
        "default on CUDA",
        None if wrong else True,
        wrong or "computes on the card: cuDNN and cuBLAS load",
        f"{INSTALL_CUDA} ({needed_for})" if wrong else "",
    )


def _what_fails(onnxruntime: ModuleType, domain: str, provider: str) -> str:
    """Run a tiny Conv of `domain` on `provider`; return what went wrong in one line, "" if nothing did."""
    if provider == CUDA_PROVIDER and hasattr(onnxruntime, "preload_dlls"):
        # It prints what pip did not install, which the system may have.
        with redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    expected = np.array([[[[27, 37], [57, 67]]]], np.float32)
    severity = 4  # its log says in many lines what the answer says in one
    onnxruntime.set_default_logger_severity(severity)
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = severity
        if domain:
            register(options)
        model = _tiny_model(domain).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=[provider], enable_fallback=0)
        if provider not in session.get_providers():
            return f"{provider} does not start: a CUDA library that it needs is missing"
        (y,) = session.run(None, {"x": x})
    except Exception as error:  # ONNX Runtime's exceptions have no common class but this one.
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    finally:
        onnxruntime.set_default_logger_severity(2)
    # Small whole numbers, which every precision holds exactly.
    return "" if np.array_equal(y, expected) else f"a Conv gave {y.tolist()}, expected {expected.tolist()}"


def _tiny_model(domain: str) -> onnx.ModelProto:
    """Return a model of one 2x2 Conv whose filter is 1, 2, 3, 4, from x (1, 1, 3, 3) to y."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], domain=domain)],
        "doctor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 2])],
        [helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 2, 2], [1.0, 2.0, 3.0, 4.0])],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("convswap", 1)]
    return helper.make_model(graph, ir_version=9, opset_imports=imports)


def _cards(native: ModuleType | None) -> list[Card]:
    """Return the cards that the driver lists; without nvidia-smi, those that CUDA sees."""
    answer = nvidia_smi("name,compute_cap,driver_version")
    if answer is None:
        return [
            Card(facts["name"], facts["compute_capability"], driver_of(facts) or "unknown")
            for facts in _cuda_cards(native)[0]
        ]
    rows = (line.rsplit(", ", 2) for line in answer.splitlines())
    # nvidia-smi says [N/A] of a card that it cannot ask.
    return [
        Card(row[0], int(row[1].replace(".", "")), row[2])
        for row in rows
        if len(row) == 3 and re.fullmatch(r"\d+\.\d", row[1])
    ]


def _cuda_cards(native: ModuleType | None) -> tuple[list[Mapping[str, Any]], str]:
    """Return the cards that CUDA sees, and with what it fails when it is asked; "" where it does not."""
    try:
        return cuda_cards(native), ""
    except ConvswapError as error:
        return [], str(error)


def _data() -> Iterator[Finding]:
    folder = os.environ.get("CONVSWAP_DATA")
    if folder:
        exists = Path(folder).is_dir()
        advice = "" if exists else "name a folder that exists, or type: unset CONVSWAP_DATA"
        yield Finding("CONVSWAP_DATA", exists, folder if exists else f"{folder}, which is no folder", advice)
    else:
        advice = "set it to a folder of data sets, if you have one"
        yield Finding("CONVSWAP_DATA", None, "not set: the cache and the network are used", advice)
    for name in datasets.NAMES:
        yield _data_set(name)


def _data_set(name: str) -> Finding:
    try:
        if datasets.available(name):
            datasets.load(name, images=1)
            return Finding(name, True, "found")
    except ConvswapError as error:
        return Finding(name, False, str(error))
    files = " and ".join(
        file.name for file in (datasets.FASHION_MNIST["test"].pixels, datasets.FASHION_MNIST["test"].labels)
    )
    return Finding(
        name,
        None,
        f"not here: `--data {name}` downloads it",
        f"without a network, put {files} into $CONVSWAP_DATA/{name}, or use --data synthetic",
    )


def _tuning_table() -> Iterator[Finding]:
    """Say what the tuning table holds; nothing on this machine needs one."""
    try:
        from convswap.runtime.tuning import read_table, table_path
    except ImportError:  # the planner is not built, as another finding says
        return
    try:
        path = table_path()
    except ConvswapError as error:
        yield Finding("tuning table", None, str(error))
        return
    entries, damage = read_table()
    found = f"{path}, problems measured: {len(entries)}"
    if damage:
        advice = "measure again with `convswap tune MODEL`, or delete the file"
        yield Finding("tuning table", None, f"{found}, damaged: {damage}", advice)
    elif entries:
        yield Finding("tuning table", True, found)
    else:
        yield Finding("tuning table", None, f"{path}, nothing measured yet", "convswap tune MODEL")


def _optional_packages() -> Iterator[Finding]:
    for name in OPTIONAL_PACKAGES:
        try:
            yield Finding(name, True, f"{importlib.metadata.version(name)}, optional")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, None, "not installed, optional", f"pip install {name}")


def _cupti(native: ModuleType | None) -> Finding:
    """Say whether `convswap profile` has what it needs, which nothing else does."""
    name = "CUPTI"
    devices, _ = _cuda_cards(native)
    driver_cuda = str(devices[0].get("driver_cuda", "")) if devices else ""
    version = installed_version()
    if driver_cuda and (reason := why_not_for(driver_cuda)):
        return Finding(name, None, f"optional: {reason}", "install driver 580 or newer")
    if version is None:
        return Finding(name, None, f"{PACKAGE} is not installed, optional: for profile, study", INSTALL_CUPTI)
    found = f"{PACKAGE} {version}"
    if driver_cuda and newer_than_driver(version, driver_cuda):
        return Finding(name, None, f"{found} is newer than the driver's CUDA {driver_cuda}", INSTALL_CUPTI)
    if wrong := why_not_importable():
        return Finding(name, None, f"{found} cannot be imported: {wrong}", INSTALL_CUPTI)
    return Finding(name, True, f"{found}, optional: for profile, study")
