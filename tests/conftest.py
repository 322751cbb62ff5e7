"""Fixtures of all tests: the devices. Tests marked `gpu` or `large` are skipped with a reason."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from card_algorithms import why_lacking
from convswap import _native, export
from convswap.models import Network
from cuda_driver import free_bytes
from hypothesis import settings
from parts import PART, is_in_part, part_of
from repeats import SHARE, time_fewer_runs

# A cache of the tests, not the user's; it stays from one run to the next.
os.environ.setdefault("CONVSWAP_CACHE", str(Path(__file__).resolve().parents[1] / "build" / "test_cache"))

# Let pytest cache the tests with rewritten assertions; otherwise each process rewrites them.
sys.dont_write_bytecode = False

# Tests neither read nor change the user's tuning table, or that of an earlier run.
_tables = tempfile.TemporaryDirectory(prefix="convswap-tables-")
os.environ["CONVSWAP_TUNING"] = str(Path(_tables.name) / "tuning.txt")

# The tests' servers run on this machine, which a proxy may not reach.
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
os.environ["no_proxy"] = f"{_direct},127.0.0.1"

# Tests must send nothing. ONNX Runtime reads the variable at its import, which no import above triggers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# A test's Ray cluster takes work from no other process. Ray reads the variables at its import.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16), RAY_USAGE_STATS_ENABLED="0")

# rich would adopt the width and the abilities of the terminal in which the tests are started.
os.environ.update(COLUMNS="80", LINES="25", TERM="xterm")
for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

# Background processes of a shell ignore Ctrl-C, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine an example takes longer than Hypothesis' default deadline.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

if SHARE in os.environ:
    time_fewer_runs()

# Memory of a test marked `large`: two tensors of 2^31 float32 and one of 2^32, and copies while they are
# built.
LARGE_HOST_BYTES = 48 << 30
LARGE_CARD_BYTES = 60 * 10**9


def why_no_gpu() -> str:
    """Return why tests on a GPU cannot run here; "" if they can."""
    if not _native.cuda_devices():
        return "no NVIDIA card or driver was found"
    return ""


def why_not_large(needs_card: bool) -> str:
    """Return why tests with more than 2^31 elements cannot run here; "" if they can."""
    host = free_host_bytes()
    if host < LARGE_HOST_BYTES:
        return f"it needs {LARGE_HOST_BYTES >> 30} GiB of free host memory, and {host >> 30} GiB are free"
    if needs_card and (card := free_bytes()) < LARGE_CARD_BYTES:
        return f"it needs {LARGE_CARD_BYTES // 10**9} GB of free card memory, and {card // 10**9} GB are free"
    return ""


def free_host_bytes() -> int:
    """Return the memory that this process can still allocate: free memory, within the container's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no limit, or "max"
        limit = int((group / "memory.max").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # The kernel reclaims cached file contents.
        used = int((group / "memory.current").read_text()) - int(statistics["inactive_file"])
        free = min(free, limit - used)
    return free


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselect_other_parts(config, items)
    reason = why_no_gpu()
    if reason:
        # With a card, some tests measure times and run one by one. Patches an ONNX Runtime that is imported.
        if "onnxruntime" in sys.modules:
            from sleeping_threads import let_waiting_threads_sleep

            let_waiting_threads_sleep()
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))


def deselect_other_parts(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `extended` that are not in the part named by the environment, if it names one."""
    text = os.environ.get(PART)
    if not text:
        return
    part = part_of(text)
    if part is None:
        raise pytest.UsageError(f"{PART} is {text!r}: expected NUMBER/COUNT with 1 <= NUMBER <= COUNT")
    others = {
        item for item in items if item.get_closest_marker("extended") and not is_in_part(item.nodeid, *part)
    }
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]


def algorithms_of(item: pytest.Item) -> Iterator[Any]:
    """Yield the algorithms without which a test has no subject."""
    for marker in item.iter_markers("algorithm"):
        yield from marker.args
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        yield item.callspec.params.get("algorithm")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        for algorithm in algorithms_of(item):
            if reason := why_lacking(algorithm):
                pytest.skip(reason)
    # Checked before each test, because free memory changes.
    if item.get_closest_marker("large"):
        reason = why_not_large(needs_card=item.get_closest_marker("gpu") is not None)
        if reason:
            pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason with its number of skipped tests: a line for each test would be hundreds."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} {reason}")


@pytest.fixture(autouse=True)
def no_measurements_of_other_tests() -> Iterator[None]:
    """Delete the tuning table and the other measurements that a test stored."""
    yield
    for file in Path(_tables.name).iterdir():
        file.unlink()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the tuning table, which does not exist yet."""
    path = tmp_path / "tables" / "tuning.txt"
    path.parent.mkdir()
    monkeypatch.setenv("CONVSWAP_TUNING", str(path))
    _native.read_tuning_table()
    _native.take_tuning_warning()  # of an earlier test
    return path


@pytest.fixture(autouse=True, scope="session")
def fitted_once() -> Iterator[None]:
    """Fit each network to a data set once in a process: a fit takes a second or two."""
    real, fitted = export._export_fitted, {}

    def export_fitted(network: Network, data: str, progress: Any) -> onnx.ModelProto:
        key = network.name, data
        if key not in fitted:
            fitted[key] = real(network, data, progress).SerializeToString()
        return onnx.ModelProto.FromString(fitted[key])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(export, "_export_fitted", export_fitted)
        yield


@pytest.fixture
def torch() -> Any:
    """Return PyTorch; skips if it is not installed."""
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")


@pytest.fixture(scope="session")
def cuda() -> str:
    """Return "cuda" with its libraries loaded; skips if ONNX Runtime has no CUDA provider."""
    # Imported here, because some tests need no ONNX Runtime.
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider: install onnxruntime-gpu")
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    return "cuda"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Return "cpu", then "cuda"."""
    return request.getfixturevalue("cuda") if request.param == "cuda" else "cpu"
