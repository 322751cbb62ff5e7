"""Check the installation: find what is installed and what is missing, with the commands to get it."""

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
    cupti_version,
    is_newer_than_driver,
    why_broken,
    why_cupti_not_importable,
    why_no_cupti_for,
)

OLDEST_PYTHON = (3, 11)
OLDEST_ONNXRUNTIME = (1, 17)
# The packages on PyPI that install the module onnxruntime.
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
_FIX_CUDA = "run nvidia-smi, which lists each card; restart the machine, or reinstall the driver"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `ok` is True if the checked thing works, False if this machine needs it and it does not work, None if
    nothing on this machine needs it. `advice` says what to type, "" if there is nothing to do.
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
    """Check everything that convswap uses on this machine, without changing anything or using the network."""
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
    """Return whether everything that this machine needs works."""
    return all(finding.ok is not False for finding in findings)


def print_doctor(findings: Sequence[Finding], console: Console) -> None:
    """Print a row for each finding, with its advice below."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    labels = {True: ("ok", "green"), False: ("MISSING", "bold red"), None: ("-", "dim")}
    for finding in findings:
        label, style = labels[finding.ok]
        table.add_row(Text(label, style), Text(finding.name), Text(finding.found))
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", "bold" if finding.ok is False else "dim"))
    console.print(table)
    missing = [finding.name for finding in findings if finding.ok is False]
    if missing:
        console.print(Text(f"To be fixed: {', '.join(missing)}."))
    else:
        console.print(Text("Everything that this machine needs works."))


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
    """Yield the finding about an onnxruntime that cannot be used, with the command to reinstall it."""
    install = INSTALL_CUDA if has_card else INSTALL_CPU
    packages = _onnxruntime_packages()
    # pip does not reinstall a package that it considers installed.
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
        # In one folder the packages overwrote each other's files. In two folders the first on the path works.
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
    """Return the installed packages that have the module onnxruntime, and the folder of each."""
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
    failure = _failure(onnxruntime, "convswap", CPU_PROVIDER)
    if failure:
        yield Finding(
            "op library", False, failure, "make clean, then make; or pip install --force-reinstall ."
        )
        return
    yield Finding("op library", True, f"{path} computes on the CPU")


def _card_findings(cards: Sequence[Card], native: ModuleType | None) -> Iterator[Finding]:
    if not cards:
        _, reason = _cuda_cards(native)
        nothing = "no NVIDIA card or driver: everything runs on the CPU"
        yield Finding("card", False if reason else None, reason or nothing, _FIX_CUDA if reason else "")
    for card in cards:
        capability_text = f"compute capability {card.compute_capability / 10:.1f}"
        yield Finding("card", True, f"{card.name}, {capability_text}, driver {card.driver}")
    if native is None:
        return
    yield from _kernel_findings(cards, native)
    for facts in _cuda_cards(native)[0]:
        has_own = facts["name"] in facts["cost_table"] or facts["cost_table"].startswith("calibrated")
        advice = "" if has_own else "run `convswap calibrate`, which measures this card in minutes"
        yield Finding("estimates", True if has_own else None, facts["cost_table"], advice)
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
    """Yield findings about the compiler of kernels, the ready-made kernels and the kernel store."""
    compiler = native.kernel_compiler()
    if compiler["why_not"]:
        yield Finding("kernel compiler", False if cards else None, compiler["why_not"])
    else:
        yield Finding("kernel compiler", True, f"NVRTC {compiler['version']}, {compiler['path']}")
    ready_made = native.ready_made_kernels()
    yield Finding("ready-made kernels", True if ready_made else None, _ready_made_text(ready_made))
    store = native.kernel_store()
    if store["unused"]:
        where = f"{store['folder']} is not used: " if store["folder"] else ""
        yield Finding("kernel store", None, f"{where}{store['unused']}; kernels are compiled by each process")
    else:
        size = f"{store['bytes'] / 1e6:.1f} MB"
        yield Finding("kernel store", True, f"{store['folder']} has {store['kernels']} kernels, {size}")


def _ready_made_text(kernels: Sequence[tuple[str, int]]) -> str:
    if not kernels:
        return "none beside the library; each kernel is compiled when a model first needs it"
    cards = ", ".join(f"{each / 10:.1f}" for each in sorted({capability for _, capability in kernels}))
    return f"{len(kernels)} beside the library, for compute capability {cards}"


def _cuda_provider(
    onnxruntime: ModuleType | None, native: ModuleType | None, cards: Sequence[Card]
) -> Iterator[Finding]:
    """Run convswap's and ONNX's Conv on the card, if the CUDA provider is installed; yield the findings."""
    if not cards or onnxruntime is None or CUDA_PROVIDER not in onnxruntime.get_available_providers():
        return
    if native is not None:
        failure = why_no_card(native) or _failure(onnxruntime, "convswap", CUDA_PROVIDER)
        yield Finding(
            "convswap on CUDA",
            not failure,
            failure or "computes on the card",
            INSTALL_CUDA if failure else "",
        )
    failure = _failure(onnxruntime, "", CUDA_PROVIDER)
    needed_for = "only the default provider, which compare sets against convswap, needs cuDNN and cuBLAS"
    yield Finding(
        "default on CUDA",
        None if failure else True,
        failure or "computes on the card: cuDNN and cuBLAS load",
        f"{INSTALL_CUDA} ({needed_for})" if failure else "",
    )


def _failure(onnxruntime: ModuleType, domain: str, provider: str) -> str:
    """Run a tiny Conv of `domain` on `provider`; return the failure in one line, "" if there is none."""
    if provider == CUDA_PROVIDER and hasattr(onnxruntime, "preload_dlls"):
        # `preload_dlls` prints the libraries that pip did not install, which the system may have.
        with redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    expected = np.array([[[[27, 37], [57, 67]]]], np.float32)
    severity = 4  # the finding has the error, so the log need not repeat it in many lines
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
    # The values are small integers, which every precision represents exactly.
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
    """Return the cards that nvidia-smi lists; without nvidia-smi, the cards that CUDA lists."""
    listing = nvidia_smi("name,compute_cap,driver_version")
    if listing is None:
        return [
            Card(facts["name"], facts["compute_capability"], driver_of(facts) or "unknown")
            for facts in _cuda_cards(native)[0]
        ]
    rows = (line.rsplit(", ", 2) for line in listing.splitlines())
    # nvidia-smi prints [N/A] for a card that it cannot query.
    return [
        Card(row[0], int(row[1].replace(".", "")), row[2])
        for row in rows
        if len(row) == 3 and re.fullmatch(r"\d+\.\d", row[1])
    ]


def _cuda_cards(native: ModuleType | None) -> tuple[list[Mapping[str, Any]], str]:
    """Return the cards that CUDA lists, and CUDA's error, "" if there is none."""
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
    """Yield the finding about the tuning table, which nothing on this machine needs."""
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
    """Return the finding about CUPTI, which only `convswap profile` and `convswap study` need."""
    name = "CUPTI"
    devices, _ = _cuda_cards(native)
    driver_cuda = str(devices[0].get("driver_cuda", "")) if devices else ""
    version = cupti_version()
    if driver_cuda and (reason := why_no_cupti_for(driver_cuda)):
        return Finding(name, None, f"optional: {reason}", "install driver 580 or newer")
    if version is None:
        return Finding(name, None, f"{PACKAGE} is not installed, optional: for profile, study", INSTALL_CUPTI)
    found = f"{PACKAGE} {version}"
    if driver_cuda and is_newer_than_driver(version, driver_cuda):
        return Finding(name, None, f"{found} is newer than the driver's CUDA {driver_cuda}", INSTALL_CUPTI)
    if reason := why_cupti_not_importable():
        return Finding(name, None, f"{found} cannot be imported: {reason}", INSTALL_CUPTI)
    return Finding(name, True, f"{found}, optional: for profile, study")
