"""The kernel store shared by processes, or not writable."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from convswap import _native

COMPILER = _native.kernel_compiler()

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(bool(COMPILER["why_not"]), reason=COMPILER["why_not"] or "NVRTC is there"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty store."""
    monkeypatch.setenv("CONVSWAP_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def test_a_full_disk_is_no_error(folder: Path) -> None:
    program = (
        "import resource, signal\n"
        "from convswap import _native\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "assert _native.compile_kernel('naive::kernel<float>', 90)\n"
        "print(_native.take_kernel_store_warning())\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        f"kernels cannot be kept in the kernel store '{folder}': File too large; each process compiles them "
        "again\n"
    )
    assert not list(folder.glob("*.kernel")) and not list(folder.glob("*.part"))


def test_a_kernel_that_is_there_waits_for_nobody(folder: Path) -> None:
    program = "from convswap import _native\nprint(len(_native.compile_kernel('naive::kernel<float>', 90)))\n"
    command = [sys.executable, "-c", program]
    expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    locks = [lock.open("r+") for lock in folder.glob("lock-*")]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        read = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    finally:
        for lock in locks:
            lock.close()
    assert locks and read == expected


def test_what_others_may_have_written_is_not_run(folder: Path) -> None:
    compiled = _native.compile_kernel("naive::kernel<float>", 90)
    (path,) = folder.glob("*.kernel")
    path.chmod(0o666)
    assert _native.compile_kernel("naive::kernel<float>", 90) == compiled
    (path,) = folder.glob("*.kernel")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_forked_process_does_not_keep_the_lock(folder: Path) -> None:
    program = (
        "import fcntl, os, pathlib, signal, sys, threading, time\n"
        "from convswap import _native\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "kernel = 'toeplitz::kernel<Float16Pairs, 2, false>'\n"
        "compiling = threading.Thread(target=_native.compile_kernel, args=(kernel, 90))\n"
        "compiling.start()\n"
        "while not (locks := list(folder.glob('lock-*'))):\n"
        "    time.sleep(0.001)\n"
        "time.sleep(0.05)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "assert not list(folder.glob('*.kernel')), 'it was forked too late'\n"
        "compiling.join()\n"
        "try:\n"
        "    with locks[0].open('r+') as lock:\n"
        "        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "finally:\n"
        "    os.kill(child, signal.SIGKILL)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_of_many_processes_one_compiles(folder: Path) -> None:
    program = (
        "import time\n"
        "from convswap import _native\n"
        "begin = time.process_time()\n"
        'code = _native.compile_kernel("toeplitz::kernel<Float16Pairs, 2, false>", 90)\n'
        "print(len(code), time.process_time() - begin)\n"
    )
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    outputs = [process.communicate()[0].split() for process in processes]
    assert {process.returncode for process in processes} == {0}
    assert len({size for size, _ in outputs}) == 1
    seconds = sorted(float(elapsed) for _, elapsed in outputs)
    # Compiling takes seconds of a processor, reading the compiled kernel a hundredth of that.
    assert seconds[-2] < seconds[-1] / 4
    assert len(list(folder.glob("*.kernel"))) == 1


@pytest.mark.slow
def test_a_process_ends_while_kernels_are_compiled(folder: Path) -> None:
    # Each kernel takes the compiler seconds.
    program = (
        "import time\n"
        "from convswap import _native\n"
        'names = [f"toeplitz::kernel<TwoScaledFloat16, {tiles}, true>" for tiles in (8, 10, 12)]\n'
        "_native.compile_ahead(names, 90)\n"
        "time.sleep(0.5)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False)
    assert result.returncode == 0
    # A process that waited for the compiler would have stored the kernel.
    assert not list(folder.glob("*.kernel")) and not list(folder.glob("*.part"))


@pytest.mark.slow
def test_kernels_are_compiled_side_by_side_in_the_background(folder: Path) -> None:
    program = (
        "import time\n"
        "from convswap import _native\n"
        'names = [f"tiled::kernel<float, {tile}>" for tile in ("1, 2", "4, 2", "8, 2", "8, 4")]\n'
        "_native.compile_ahead([*names, *names, 'no such kernel'], 90)\n"
        "while _native.kernel_store()['kernels'] < len(names):\n"
        "    time.sleep(0.01)\n"
        "print(time.perf_counter())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert len(list(folder.glob("*.kernel"))) == 4
