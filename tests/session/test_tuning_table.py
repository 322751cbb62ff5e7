"""The tuning table: entries that the planner uses or ignores, and concurrent writers, which lose no entry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import convswap
import numpy as np
import onnx
import pytest
from build_tools import environment_with_helpers
from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime.tuning import TuningEntry, read_table, store, table_path
from op_sessions import CASE, case_model, make_session, run
from tuning_files import FALLBACK, line, write

PROBLEM = _native.Problem(CASE.x_shape, CASE.w_shape, CASE.has_bias, **CASE.attributes)
TEXT = PROBLEM.text
X = CASE.arrays()[0]
GOOD = line(TEXT, "reference", "cpu")


def tuned_algorithm(problem: _native.Problem = PROBLEM) -> str:
    return _native.choose(problem, "cpu", "tuned")


def entry(
    problem: str = TEXT, algorithm: str = "reference", version: str = _native.__version__
) -> TuningEntry:
    return TuningEntry(_native.tuning_device("cpu"), version, problem, algorithm, {algorithm: 0.25})


def test_tuned_session_runs_the_algorithm_of_the_table(table, device):
    """Shown by the bits: the two algorithms sum in different orders and precisions."""
    write(table, line(TEXT, FALLBACK[device], device))
    outputs = {
        name: run(make_session(case_model(CASE, algorithm=name), device), X)
        for name in ("tuned", FALLBACK[device], "auto")
    }
    assert np.array_equal(outputs["tuned"], outputs[FALLBACK[device]])
    assert not np.array_equal(outputs["tuned"], outputs["auto"])


@pytest.mark.parametrize("algorithm", ["auto", "direct"])
def test_the_table_does_not_affect_nodes_that_do_not_ask_for_it(table, algorithm):
    write(table, "damaged", GOOD)
    assert _native.choose(PROBLEM, "cpu", algorithm) == "direct"
    expected = _native.conv(*CASE.arrays(), algorithm="direct", **CASE.attributes)
    assert np.array_equal(run(make_session(case_model(CASE, algorithm=algorithm)), X), expected)
    assert _native.take_tuning_warning() == ""


def test_swapped_model_of_tuned_nodes_runs_the_algorithm_of_the_table(table):
    write(table, GOOD)
    swapped = convswap.swap(onnx.load_from_string(case_model(CASE, domain="")), algorithm="tuned")
    y = run(make_session(swapped.to_proto().SerializeToString()), X)
    assert np.array_equal(y, _native.conv(*CASE.arrays(), algorithm="reference", **CASE.attributes))


def test_a_table_that_is_not_there_leaves_the_choice_to_the_rule(table):
    assert tuned_algorithm() == "direct"
    assert read_table() == ([], "")
    assert "not in the tuning table" in _native.explain(PROBLEM, "cpu", "tuned")["why"]


@pytest.mark.parametrize(
    "ignored",
    [
        line(TEXT, "reference", "cpu", version="0.0.1"),
        line(TEXT, "reference", "cpu", device_name="cpu Another Processor avx512"),
        line(TEXT, "reference", "cpu", device_name="cuda NVIDIA H200"),
        line(TEXT.replace("bias=yes", "bias=no"), "reference", "cpu"),
        line(TEXT.replace("tf32", "ieee"), "reference", "cpu"),
    ],
    ids=["version", "processor", "card", "problem", "precision"],
)
def test_entries_about_something_else_are_ignored(table, ignored):
    write(table, ignored)
    assert tuned_algorithm() == "direct"
    assert (len(read_table()[0]), read_table()[1]) == (1, "")


def test_of_two_entries_about_one_problem_the_last_counts(table):
    write(table, line(TEXT, "direct", "cpu"), GOOD)
    assert tuned_algorithm() == "reference"
    write(table, GOOD, line(TEXT, "direct", "cpu"))
    assert tuned_algorithm() == "direct"


def test_an_unknown_algorithm_leaves_the_choice_to_the_rule(table):
    write(table, line(TEXT, "winograd", "cpu"))
    explanation = _native.explain(PROBLEM, "cpu", "tuned")
    assert (explanation["algorithm"], explanation["decided_by"]) == ("direct", "rule")
    assert explanation["why"].startswith(
        "the tuning table names 'winograd', which is not in the catalog; by heuristic"
    )
    assert run(make_session(case_model(CASE, algorithm="tuned")), X).shape == CASE.reference.shape


def test_an_algorithm_that_cannot_compute_the_problem_leaves_the_choice_to_the_rule(table):
    problem = _native.Problem((1, 1, 4, 4), (1, 1, 3, 3), type="float64")
    write(table, line(problem.text, "direct", "cpu"))
    explanation = _native.explain(problem, "cpu", "tuned")
    assert (explanation["algorithm"], explanation["decided_by"]) == ("reference", "rule")
    assert "'direct', which cannot compute it: it computes in float32" in explanation["why"]


def test_an_algorithm_of_another_device_leaves_the_choice_to_the_rule(table):
    write(table, line(TEXT, "naive", "cpu"))
    assert tuned_algorithm() == "direct"


def test_a_changed_file_is_read_again_by_what_is_planned_then(table):
    session = make_session(case_model(CASE, algorithm="tuned"))
    by_rule = run(session, X)
    write(table, GOOD)
    assert tuned_algorithm() == "reference"
    # A plan in use is kept.
    assert np.array_equal(run(session, X), by_rule)
    assert not np.array_equal(run(make_session(case_model(CASE, algorithm="tuned")), X), by_rule)
    table.unlink()
    assert tuned_algorithm() == "direct"


def test_precision_is_no_part_of_the_problem_where_it_means_nothing():
    texts = {
        _native.Problem((1, 1, 4, 4), (1, 1, 3, 3), type="float16", precision=precision).text
        for precision in ("tf32", "ieee")
    }
    assert len(texts) == 1


def test_padding_is_part_of_the_problem_as_it_is_resolved():
    automatic = _native.Problem((1, 1, 4, 4), (1, 1, 3, 3), auto_pad="SAME_UPPER")
    assert automatic.text == _native.Problem((1, 1, 4, 4), (1, 1, 3, 3), pads=(1, 1, 1, 1)).text
    assert automatic.text.endswith(
        "x=1x1x4x4 w=1x1x3x3 bias=no group=1 strides=1x1 dilations=1x1 pads=1x1x1x1"
    )
    assert "strides=2 dilations=1 pads=0x0" in _native.Problem((1, 1, 4), (1, 1, 3), strides=(2,)).text


FIELDS = GOOD.split(" | ")


@pytest.mark.parametrize(
    ("damaged", "fault"),
    [
        ("something else", "line 2 has 1 fields, expected 5"),
        (" | ".join(FIELDS[:4]), "has 4 fields"),
        (GOOD + " | more", "has 6 fields"),
        (GOOD.replace(" | ", "|"), "has 1 fields"),
        (" | ".join([*FIELDS[:3], "", FIELDS[4]]), "has an empty field"),
        (" | ".join([*FIELDS[:4], "reference"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference fast"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference nan"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference inf"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference 0"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference -1"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference 1.5ms"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference 1e999"]), "has times"),
        (" | ".join([*FIELDS[:4], "reference 0.5,"]), "has times"),
        (" | ".join([*FIELDS[:4], "direct 0.5"]), "has no time of the algorithm that it names"),
        (" | ".join([*FIELDS[:3], "refer", FIELDS[4]]), "has no time of the algorithm"),
        (GOOD + "\r", "no printable ASCII"),
        ("\0" * 200, "no printable ASCII"),
        (GOOD.replace("cpu", "cpü"), "no printable ASCII"),
    ],
    ids=lambda value: value[-30:].encode("unicode_escape").decode(),
)
def test_a_damaged_line_is_left_out_and_named(table, damaged, fault):
    problem = _native.Problem((1, 1, 4, 4), (1, 1, 3, 3))
    write(table, damaged, line(problem.text, "reference", "cpu"))
    assert tuned_algorithm() == "direct"
    assert tuned_algorithm(problem) == "reference"
    assert fault in read_table()[1]
    warning = _native.take_tuning_warning()
    assert fault in warning and str(table) in warning and "\n" not in warning
    # One warning for each state of the file.
    assert tuned_algorithm() == "direct"
    assert _native.take_tuning_warning() == ""


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "its first line is not"),
        (b"no table\n", "its first line is not"),
        (b"\xff\xfe\x00" * 1000, "its first line is not"),
        (_native.tuning_header.encode(), "its first line is not"),
        (_native.tuning_header.replace("1", "2").encode() + b"\n" + GOOD.encode() + b"\n", "its first line"),
        (f"{_native.tuning_header}\n{GOOD}".encode(), "line 2 is cut off"),
        (f"{_native.tuning_header}\n{GOOD[:40]}".encode(), "line 2 is cut off"),
        (f"{_native.tuning_header}\nx\ny\nz\n".encode(), "damaged lines in all: 3"),
        (b" " * ((16 << 20) + 1), "larger than a tuning table ever is"),
    ],
    ids=["empty", "other", "binary", "half a header", "format 2", "no end", "cut", "three", "large"],
)
def test_a_damaged_file_is_ignored(table, content, fault):
    table.write_bytes(content)
    assert tuned_algorithm() == "direct"
    assert fault in read_table()[1]


def test_comments_and_empty_lines_are_no_damage(table):
    write(table, "# a comment", "", GOOD, "")
    assert (tuned_algorithm(), read_table()[1]) == ("reference", "")


def test_what_is_no_file_is_damage(table, tmp_path, monkeypatch):
    table.mkdir()
    assert tuned_algorithm() == "direct"
    assert read_table()[1] == "it is not a regular file"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("CONVSWAP_TUNING", str(pipe))
    assert tuned_algorithm() == "direct"  # without waiting for a writer
    with pytest.raises(ConvswapError, match="no regular file"):
        store([entry()])


def test_every_beginning_of_a_table_is_read_without_a_crash(table):
    content = f"{_native.tuning_header}\n{GOOD}\n".encode()
    for length in range(len(content)):
        table.write_bytes(content[:length])
        assert tuned_algorithm() == "direct"


def test_a_session_says_once_in_its_log_that_the_table_is_damaged(table):
    write(table, "damaged", line(TEXT, "reference", "cpu"))
    program = (
        "from op_sessions import *\n"
        "for _ in range(2):\n"
        "    session = make_session(case_model(CASE, algorithm='tuned'))\n"
        "    for _ in range(2):\n"
        "        run(session, CASE.arrays()[0])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment_with_helpers(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr.count("tuning table") == 1
    assert f"'{table}' is damaged: line 2 has 1 fields" in ended.stderr


def test_unknown_names_still_list_the_nearest():
    with pytest.raises(ConvswapError, match="did you mean 'tuned'"):
        _native.choose(PROBLEM, "cpu", "tunde")
    with pytest.raises(ConvswapError, match="did you mean 'tuned'"):
        convswap.swap(onnx.load_from_string(case_model(CASE, domain="")), algorithm="tunde")
    with pytest.raises(Exception, match=r"Conv node 'conv1'.*did you mean 'tuned'"):
        make_session(case_model(CASE, algorithm="tunde"))


def test_the_path_is_the_variables_then_the_cache_folders_then_the_homes(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVSWAP_TUNING", "own.txt")
    assert table_path() == Path("own.txt")
    monkeypatch.setenv("CONVSWAP_TUNING", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert table_path() == tmp_path / "convswap" / "tuning.txt"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/of/somebody")
    assert table_path() == Path("/home/of/somebody/.cache/convswap/tuning.txt")


def test_what_is_stored_is_what_the_planner_uses(table):
    assert store([entry()]) == table
    assert tuned_algorithm() == "reference"
    assert read_table() == ([entry()], "")


def test_storing_makes_the_folder_and_keeps_what_is_there(monkeypatch, tmp_path):
    path = tmp_path / "new" / "folder" / "tuning.txt"
    monkeypatch.setenv("CONVSWAP_TUNING", str(path))
    old = [entry(version="0.0.1"), entry("float32 tf32 other")]
    store(old)
    store([entry()])
    store([entry(algorithm="direct")])
    assert sorted(read_table()[0], key=TuningEntry.line) == sorted(
        [*old, entry(algorithm="direct")], key=TuningEntry.line
    )
    assert path.read_text().startswith(f"{_native.tuning_header}\n")


@pytest.mark.parametrize("milliseconds", [1e-7, 0.00012345, 0.96, 12.3456, 12345.6, 1e9])
def test_times_survive_with_four_digits(table, milliseconds):
    stored = TuningEntry("cpu x", "1", "p", "a", {"a": milliseconds, "b": 2 * milliseconds})
    store([stored])
    (read,), damage = read_table()
    assert damage == ""
    assert read.milliseconds == pytest.approx(stored.milliseconds, rel=1e-3)
    assert "e" not in stored.line().rpartition(" | ")[2]


def test_storing_replaces_a_damaged_table_and_keeps_the_old_one(table):
    write(table, "damaged", line("other", "direct", "cpu"))
    before = table.read_text()
    store([entry()])
    stored, damage = read_table()
    assert (len(stored), damage) == (2, "")
    assert table.with_name("tuning.txt.damaged").read_text() == before


def test_a_link_is_followed(table, tmp_path):
    real = tmp_path / "real.txt"
    table.symlink_to(real)
    store([entry()])
    assert table.is_symlink() and real.is_file()


@pytest.mark.parametrize("where", ["folder", "under a file"])
def test_a_table_that_cannot_be_written_is_refused_in_one_line(tmp_path, monkeypatch, where):
    path = tmp_path / "folder" if where == "folder" else tmp_path / "file" / "tuning.txt"
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONVSWAP_TUNING", str(path))
    with pytest.raises(ConvswapError) as raised:
        store([entry()])
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_writer_that_is_killed_leaves_the_table_readable_with_what_it_had(table):
    # Twenty writers, each a fork of one process, which is faster than starting Python twenty times. They keep
    # writing as if to a slow disk, so that most are killed in the middle of a write.
    program = (
        "import itertools, os, sys, time\n"
        "from pathlib import Path\n"
        "from convswap.runtime.tuning import TuningEntry, store\n"
        "def write_slowly(path, content):\n"
        "    with path.open('wb', buffering=0) as file:\n"
        "        for begin in range(0, len(content), 256):\n"
        "            file.write(content[begin : begin + 256])\n"
        "            time.sleep(0.0002)\n"
        "Path.write_bytes = write_slowly\n"
        "for writer in sys.stdin:\n"
        "    process = os.fork()\n"
        "    for number in itertools.count() if process == 0 else ():\n"
        "        name = f'{writer.strip()} {number % 3}'\n"
        "        store([TuningEntry('cpu', '1', name, 'a', {'a': 1.0 + number})])\n"
        "        if number == 2:\n"
        "            print(os.getpid(), flush=True)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)\n"
    )
    expected = {f"before {number}" for number in range(50)}
    store([entry(problem) for problem in expected])
    random = Random(0)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writers:
        for writer in range(20):
            print(writer, file=writers.stdin, flush=True)
            process = int(writers.stdout.readline())
            time.sleep(random.uniform(0, 0.02))
            os.kill(process, signal.SIGKILL)
            assert int(writers.stdout.readline()) == -signal.SIGKILL
            expected |= {f"{writer} {number}" for number in range(3)}
            entries, damage = read_table()
            assert ({each.problem for each in entries}, damage) == (expected, "")
        writers.stdin.close()
    assert writers.returncode == 0
    # The dead processes hold no lock.
    store([entry("after")])
    assert {each.problem for each in read_table()[0]} == {*expected, "after"}


def test_concurrent_writers_lose_nothing_and_no_reader_sees_a_damaged_table(table):
    program = (
        "import sys\n"
        "from convswap.runtime.tuning import TuningEntry, store\n"
        "for number in range(8):\n"
        "    store([TuningEntry('cpu', '1', f'{sys.argv[1]} {number}', 'a', {'a': 1.0})])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(number)]) for number in range(4)]
    while any(writer.poll() is None for writer in writers):
        assert read_table()[1] == ""
    assert all(writer.wait() == 0 for writer in writers)
    assert {known.problem for known in read_table()[0]} == {f"{w} {n}" for w in range(4) for n in range(8)}
    assert sorted(path.name for path in table.parent.iterdir()) == ["tuning.txt", "tuning.txt.lock"]


def test_a_byte_order_mark_in_front_is_no_damage(table):
    write(table, GOOD)
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert (len(read_table()[0]), read_table()[1], tuned_algorithm()) == (1, "", "reference")
