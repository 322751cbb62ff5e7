"""The lab's commands and its worker process, without a card."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from command_line import only_line_of_refusal, refusal
from convswap import _native, lab
from convswap.cli.main import main
from convswap.tutorial.lab.api import watch
from convswap.tutorial.lab.emulation_check import find_host_compiler
from convswap.tutorial.lab.kernel import Request, read_kernel
from convswap.tutorial.lab.process import LabProcess
from convswap.tutorial.lab.result import LabResult
from faulty_kernels import COURSE, FAULTY, SUM

WHY_NO_COMPILER = _native.kernel_compiler()["why_not"]
SCHEMA = json.loads((Path(lab.__file__).parent / "schema.json").read_text(encoding="utf-8"))
needs_compilers = pytest.mark.skipif(
    bool(WHY_NO_COMPILER) or find_host_compiler() is None, reason=WHY_NO_COMPILER or "there is no g++"
)


def faulty(name: str) -> str:
    (text,) = [each.text for each in FAULTY if each.name == name]
    return text


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use an empty cache for the ranking and the kernels."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CONVSWAP_CACHE", str(folder))
        yield folder


def test_new_writes_a_file_and_overwrites_none(capsys, tmp_path) -> None:
    file = tmp_path / "mine.cu"
    assert main(["lab", "new", str(file)]) == 0
    assert f"convswap lab run {file}" in capsys.readouterr().out
    assert "convswap lab run mine.cu" in file.read_text()
    assert "is there already" in only_line_of_refusal(capsys, "lab", "new", str(file))
    other = str(tmp_path / "other.cu")
    assert main(["lab", "new", other, "--from", "ladder_04_shared_memory"]) == 0
    assert "Rung 4 of the ladder" in Path(other).read_text()
    third = str(tmp_path / "third.cu")
    command = ("lab", "new", third, "--from")
    assert "two kernels" in only_line_of_refusal(capsys, *command, "ladder_11_im2col")
    assert "did you mean" in only_line_of_refusal(capsys, *command, "ladder_4_shared_memory")
    assert "leave --what out" in only_line_of_refusal(
        capsys, *command, "ladder_04_shared_memory", "--what", "conv"
    )
    assert "known: conv, course" in only_line_of_refusal(capsys, "lab", "new", third, "--what", "gemm")
    assert "no folder" in only_line_of_refusal(capsys, "lab", "new", str(tmp_path / "a" / "b.cu"))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("nowhere.cu", "convswap lab new nowhere.cu"),
        (".", "convswap lab submit"),
        (b"\xff\xfe" + b"x\n" * 3, "UTF-8"),
        (b"\0", "a byte 0"),
        (b"int main() {}\n", "expected __global__ void forward"),
        (COURSE.encode() + b"// launch: grid(B) block(1)\n", "a second '// launch:'"),
        (COURSE.encode() + b"// interface: gemm\n", "expected course or conv"),
        (COURSE.encode() + b"// only: M = 3\n", "column 3"),
        (COURSE.replace("grid(B, M,", "grid(B, M, 1,").encode(), "expected at most 3"),
        (COURSE.replace("grid(B, M,", f"grid({'(' * 80}B, M,").encode(), "fewer than 50 parentheses"),
        (COURSE.replace("grid(B, M,", f"grid({'9' * 30}, M,").encode(), "a number below 2^63"),
        (COURSE.replace("grid(B, M,", "grid(exit(1), M,").encode(), "expected one of ceil_div(a, b)"),
    ],
    ids=range(12),
)
def test_a_file_that_is_none_gets_one_clear_line(capsys, monkeypatch, tmp_path, file, words) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(file, bytes):
        Path("mine.cu").write_bytes(file)
        file = "mine.cu"
    assert words in only_line_of_refusal(capsys, "lab", "run", file)


def test_other_wrong_arguments_get_one_clear_line(capsys, monkeypatch, tmp_path, cache) -> None:
    monkeypatch.chdir(tmp_path)
    lab.new("mine.cu")
    assert "seconds must be above 0" in only_line_of_refusal(
        capsys, "lab", "run", "mine.cu", "--seconds", "0"
    )
    assert "batch must be at least 1" in only_line_of_refusal(capsys, "lab", "run", "mine.cu", "--batch", "0")
    old = ("lab", "run", "mine.cu", "--compute-capability", "6.1")
    assert "capability 6.1: expected one from 7.5 on" in only_line_of_refusal(capsys, *old)
    assert "cannot write" in only_line_of_refusal(capsys, "lab", "run", "mine.cu", "--json", "mine.cu")
    assert "is no folder" in refusal(capsys, "lab", "submit", "mine.cu")
    Path("empty").mkdir()
    assert "no file that ends in .cu" in refusal(capsys, "lab", "submit", "empty")
    assert "unknown network or layer 'nonet'" in refusal(capsys, "lab", "run", "mine.cu", "nonet")
    assert main(["lab", "rank", "--html", "page.html"]) == 0
    assert "no kernel has been timed yet" in capsys.readouterr().out
    (cache / "lab.sqlite").write_text("no database, for sure, but something else")
    assert "the ranking" in only_line_of_refusal(capsys, "lab", "rank")
    (cache / "lab.sqlite").unlink()


@needs_compilers
def test_run_without_a_card_checks_and_says_that_nothing_is_timed(capsys, tmp_path) -> None:
    file = str(lab.new(tmp_path / "mine.cu"))
    written = tmp_path / "found.json"
    assert main(["lab", "run", file, "--device", "cpu", "--json", str(written)]) == 0
    out = capsys.readouterr().out
    assert "mine.cu is correct: 8 convolutions on the CPU, thread by thread" in out
    assert "not timed" in out
    report = json.loads(written.read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["right"] and report["fault"] is None and report["milliseconds"] is None


@pytest.mark.extended
@needs_compilers
def test_kernels_that_do_not_end_are_stopped_and_the_next_one_runs() -> None:
    stages: list[str] = []
    with LabProcess() as process:
        options = {"device": "cpu", "process": process, "progress": stages.append}
        huge = lab.run(faulty("huge compile"), seconds=0.4, **options)
        assert huge.fault is not None and huge.fault.kind in ("time", "compile")
        endless = lab.run(faulty("infinite loop"), seconds=1.0, **options)
        assert endless.fault is not None and endless.fault.kind == "time", endless.fault
        flood = lab.run(faulty("printf flood"), **options)
        assert flood.fault is not None and flood.fault.kind == "output"
        unknown = lab.run(faulty("unknown name"), **options)
        assert unknown.fault is not None and "^" in unknown.fault.text
        for result in (huge, endless, flood, unknown):
            jsonschema.validate(result.to_json(), SCHEMA)
        assert lab.run(COURSE, **options).is_right
    assert "compiling kernel.cu" in stages


@needs_compilers
def test_a_worker_that_read_counters_does_not_run_another_kernel() -> None:
    request = Request(read_kernel(COURSE), "ece408-2017-high", device="cpu")
    with LabProcess("cpu") as process:
        process.start()
        worker = process._worker
        counters, why_not = process.counters(request, print)
        assert counters == {} and why_not
        assert worker is not None and worker.poll() is not None
        assert process.run(request, print).is_right


@needs_compilers
def test_what_a_kernel_prints_on_the_cpu_is_noted() -> None:
    text = COURSE.replace(SUM, f'if (n + m + p + q == 0) printf("here\\n");\n  {SUM}')
    with LabProcess("cpu") as process:
        result = process.run(Request(read_kernel(text), "ece408-2017-high", device="cpu"), print)
    assert result.is_right
    assert any("the first: 'here'" in note for note in result.notes)


@pytest.mark.extended
@needs_compilers
def test_class_is_one_table(capsys, tmp_path) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "ada.cu").write_text(COURSE)
    (folder / "bob.cu").write_text(faulty("one channel alone"))
    (folder / "eve.cu").write_text("hello\n")
    (folder / "max.cu").write_bytes(COURSE.encode("utf-16-le"))
    table = tmp_path / "class.csv"
    assert main(["lab", "submit", str(folder), "--device", "cpu", "--csv", str(table)]) == 0
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    assert [(row["file"], row["right"], row["fault"]) for row in rows] == [
        ("ada.cu", "yes", ""),
        ("bob.cu", "no", "wrong"),
        ("eve.cu", "no", "launch"),
        ("max.cu", "no", "launch"),
    ]
    assert (
        "expected" in rows[1]["text"] and "bob.cu: bob.cu computes wrong outputs" in capsys.readouterr().out
    )


@needs_compilers
def test_watch_reports_the_result_of_each_save(tmp_path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(COURSE)
    results: list[object] = []
    seconds: list[float] = []

    def report(result: object, elapsed: float) -> None:
        results.append(result)
        seconds.append(elapsed)
        if len(results) == 1:
            file.write_text("no launch line, but __global__\n")
        if len(results) == 2:
            # Editors replace the file when they save.
            (tmp_path / "new").write_text(faulty("unknown name"))
            (tmp_path / "new").replace(file)

    watching = threading.Thread(
        target=lambda: watch(file, "ece408-2017-high", report, saves=2, device="cpu"), daemon=True
    )
    watching.start()
    watching.join(120)
    first, second, third = results
    assert isinstance(first, LabResult) and first.is_right
    assert "does not say how its kernel is started" in str(second)
    assert isinstance(third, LabResult) and third.fault is not None and third.fault.kind == "compile"
    # The worker is running, and nothing is compiled for the processor.
    assert seconds[2] < 3


@pytest.mark.slow
@needs_compilers
def test_an_interrupt_ends_the_worker_too_and_exits_130(tmp_path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(faulty("infinite loop"))
    command = [
        sys.executable,
        "-m",
        "convswap.cli",
        "lab",
        "run",
        str(file),
        "--device",
        "cpu",
        "--seconds",
        "60",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "thread by thread" in line:
            break
    (worker,) = children_of(process.pid)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.stderr.read()
    assert process.wait(20) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@needs_compilers
def test_a_kernel_ends_with_the_command_that_is_killed(tmp_path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(faulty("infinite loop"))
    command = (sys.executable, "-m", "convswap.cli", "lab", "run", file, "--device", "cpu", "--seconds", "60")
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    running: list[int] = []
    for _ in range(600):
        workers = children_of(process.pid)
        names = {
            each: Path(f"/proc/{each}/comm").read_text() for worker in workers for each in children_of(worker)
        }
        running = [each for each, name in names.items() if name == "run_kernel\n"]
        if running:
            break
        time.sleep(0.1)
    process.kill()
    process.wait(20)
    (kernel,) = running
    deadline = time.monotonic() + 20
    while is_running(kernel):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(number: int) -> bool:
    """Return whether a process has not ended; one that nobody waits for stays in the list."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def children_of(parent: int) -> list[int]:
    folders = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(number) for folder in folders for number in folder.read_text().split()]


def test_a_kernel_with_a_byte_order_mark_is_read_without_it(tmp_path):
    file = lab.new(tmp_path / "mine.cu")
    text = file.read_text(encoding="utf-8")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_kernel(file).text == text
