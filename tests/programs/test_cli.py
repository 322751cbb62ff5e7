"""The command line, mostly in processes of its own."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import swap_models
from command_line import only_line_of_refusal, refusal
from comparisons import SCHEMA
from convswap import _native
from convswap.bench import suite_runs
from convswap.cli import train
from convswap.cli.main import GROUPS, main
from convswap.cli.results import progress_line
from convswap.errors import ConvswapError
from onnx import helper
from op_sessions import graph_model

jsonschema = pytest.importorskip("jsonschema")
COMMAND = [sys.executable, "-m", "convswap"]
# Larger than any size that the compiled code accepts.
TOO_MANY = ["--batch", str(10**20)]


@pytest.fixture
def work_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def network(work_folder):
    assert main(["export", "ece408-2019sp", "-o", "network.onnx"]) == 0
    return work_folder / "network.onnx"


def save_model_of(op, path, **attributes):
    onnx.save(graph_model([helper.make_node(op, ["x"], ["y"], **attributes)], {"x": [1, 1, 4, 4]}), path)


def test_names_in_a_model_do_not_control_the_terminal(work_folder, capsys):
    model = swap_models.two_convs()
    model.graph.node[0].name = "c\x1b[2J\x9b"
    onnx.save(model, "model.onnx")
    assert main(["explain", "model.onnx"]) == 0
    printed = capsys.readouterr().out
    assert "c?[2J" in printed and not {"\x1b", "\x9b"} & set(printed)


def test_export_lists_the_eight_networks_of_the_course_first(capsys):
    assert main(["export", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:8] == [
        "ece408-2017-high",
        "ece408-2017-low",
        "ece408-2018sp",
        "ece408-2018fa",
        "ece408-2019sp",
        "baseline-2019sp",
        "ece408-2019fa",
        "ece408-2020",
    ]


def test_export_writes_a_checked_model_named_after_the_network(work_folder, capsys):
    assert main(["export", "ece408-2020"]) == 0
    assert capsys.readouterr().out.strip() == "ece408-2020.onnx"
    model = onnx.load("ece408-2020.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (9, 20)


def test_export_reads_the_course_checkpoint(work_folder, capsys):
    data = os.environ.get("CONVSWAP_DATA")
    if not data:
        pytest.skip("CONVSWAP_DATA is not set, so the course checkpoint is not here")
    folder = Path(data) / "ece408-2019sp"
    arguments = [
        "--mxnet-symbol",
        f"{folder}/ece408-symbol.json",
        "--mxnet-params",
        f"{folder}/ece408-0002.params",
    ]
    assert main(["export", *arguments, "--image-size", "48"]) == 0
    assert capsys.readouterr().out.strip() == "ece408.onnx"
    assert main(["swap", "ece408.onnx", "-o", "swapped.onnx"]) == 0
    assert "2 Conv swapped, 0 left" in capsys.readouterr().out


def test_swap_writes_model_and_report(network, work_folder, capsys):
    assert (
        main(["swap", "network.onnx", "-o", "swapped.onnx", "--report", "report.json", "--only", "conv2"])
        == 0
    )
    assert "1 Conv swapped, 1 left" in capsys.readouterr().out
    report = json.loads(Path("report.json").read_text())
    assert report["swapped"] == ["conv2"]
    assert [entry["node"] for entry in report["left"]] == ["conv1"]
    domains = {
        node.name: node.domain for node in onnx.load("swapped.onnx").graph.node if node.op_type == "Conv"
    }
    assert domains == {"conv1": "", "conv2": "convswap"}


def test_swap_of_a_swapped_file_says_that_nothing_changes(network, capsys):
    assert main(["swap", "network.onnx", "-o", "swapped.onnx"]) == 0
    assert "swapped before" not in capsys.readouterr().out
    assert main(["swap", "swapped.onnx", "-o", "again.onnx", "--precision", "ieee"]) == 0
    assert "all Convs were swapped before; they keep their algorithm" in capsys.readouterr().out


def test_swap_does_not_overwrite_its_input_unless_forced(network, capsys):
    before = network.read_bytes()
    message = refusal(capsys, "swap", "network.onnx", "-o", "network.onnx")
    assert "--force" in message
    assert network.read_bytes() == before
    assert main(["swap", "network.onnx", "-o", "network.onnx", "--force"]) == 0
    assert network.read_bytes() != before


def test_compare_prints_the_table_and_writes_the_json_of_the_design(work_folder):
    arguments = ["compare", "ece408-2019sp", "--data", "synthetic", "--images", "60", "--batch", "20"]
    arguments += ["--device", "cpu", "--json", "comparison.json"]
    result = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    comparison = json.loads(Path("comparison.json").read_text())
    jsonschema.validate(comparison, SCHEMA)
    assert [layer["node"] for layer in comparison["layers"]] == ["conv1", "conv2"]
    assert comparison["images"] == 60
    assert comparison["top1_agreement"] == 1.0
    table = result.stdout.splitlines()
    assert max(map(len, table)) <= 120
    assert any("conv2" in line and "direct" in line for line in table)
    assert "\x1b" not in result.stdout and "Op Time" not in result.stdout
    assert "timing" in result.stderr  # long work shows progress


def test_compare_prints_the_two_lines_of_the_course_for_each_side(network, capsys):
    arguments = ["compare", "network.onnx", "--data", "synthetic", "--images", "50", "--batch", "20"]
    assert main([*arguments, "--device", "cpu", "--course", "--json", "comparison.json"]) == 0
    comparison = json.loads(Path("comparison.json").read_text())
    lines = capsys.readouterr().out.splitlines()
    assert any("sum of all Conv" in line for line in lines)  # in addition to the table
    assert not any("Op Time is that of" in line for line in lines)
    for name, first in (("default", -6), ("convswap", -3)):
        seconds = comparison["layers_sum_ms"][name] / 1e3 * 50 / 20
        assert lines[first:][:3] == [
            f"{name}:",
            f"Op Time: {seconds:.6f}",
            f"Correctness: {round(comparison['accuracy'][name], 4)} Model: network.onnx",
        ]


def test_compare_exits_1_where_the_answers_differ_by_more_than_the_tolerance(network, capsys):
    arguments = ["--data", "synthetic", "--images", "20", "--device", "cpu"]
    assert main(["compare", "network.onnx", *arguments, "--tolerance", "0"]) == 1
    assert "DIFFER" in capsys.readouterr().out


def test_bench_writes_the_rows_of_the_design(work_folder, capsys):
    arguments = ["--layers", "2017", "--batch", "1,2", "--device", "cpu", "--json", "rows.json"]
    assert main(["bench", "course", *arguments]) == 0
    rows = json.loads(Path("rows.json").read_text())
    assert [row["batch"] for row in rows] == [1, 2]
    for row in rows:
        assert row["algorithm"] == "direct"
        assert row["default_ms"] > 0 and row["convswap_ms"] > 0
        assert row["relative_l2_error"] < 1e-6  # float32 sums of 25 terms
        assert {"layer", "precision", "floor_ms", "best_other_ms", "best_other"} <= row.keys()


@pytest.mark.parametrize(
    ("stop", "status"),
    [(KeyboardInterrupt(), 130), (ConvswapError("layer of all is too large"), 2)],
    ids=["interrupt", "error"],
)
def test_bench_keeps_the_rows_that_it_had_before_it_ended(work_folder, capsys, monkeypatch, stop, status):
    original_row = suite_runs._row

    def until_the_second(layer, batch, *options):
        if batch == 2:
            raise stop
        return original_row(layer, batch, *options)

    monkeypatch.setattr(suite_runs, "_row", until_the_second)
    arguments = ["--layers", "2017", "--batch", "1,2,4", "--device", "cpu", "--json", "rows.json"]
    assert main(["bench", "course", *arguments]) == status
    assert [row["batch"] for row in json.loads(Path("rows.json").read_text())] == [1]
    assert "2017-conv1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["compare", "ece408-2019fal"], "'ece408-2019fa'"),
        (["compare", "ece408-2019sp", "--images", "0", "--data", "synthetic"], "0"),
        (["compare", "ece408-2019sp", "--batch", "0", "--data", "synthetic"], "0"),
        (["compare", "ece408-2019sp", "--algorithm", "dirct", "--data", "synthetic"], "'direct'"),
        (["compare", "ece408-2019sp", "--precision", "tf23", "--data", "synthetic"], "'tf32'"),
        (["compare", "ece408-2019sp", "--data", "sinthetic"], "'synthetic'"),
        (["compare", "missing.onnx"], "missing.onnx"),
        (["compare", "ece408-2019sp", "--json", "nowhere/file.json"], "'nowhere'"),
        (["compare", "ece408-2019sp", "--images", "many"], "many"),
        (["compare", "ece408-2019sp", "--data", "random", "--course", "--device", "cpu"], "has no labels"),
        (["compare", "ece408-2019sp", "--course", "--no-layers"], "not allowed with argument --course"),
        (["export", "ece408-2021"], "'ece408-20"),
        (["export"], "--list"),
        (["export", "--list", "ece408-2020"], "NETWORK has no meaning beside --list; leave one of them out"),
        (["export", "--list", "-o", "model.onnx"], "--output has no meaning beside --list"),
        (["export", "--list", "--image-size", "0"], "--image-size has no meaning beside --list"),
        (["export", "--list", "--mxnet-symbol", "s.json"], "--mxnet-symbol has no meaning beside --list"),
        (["compare", ""], "the name of the model is empty; expected the path of an ONNX model"),
        (["swap", "alexnet", "-o", "out.onnx"], "write it first: `convswap export alexnet`"),
        (["optimze"], "unknown command 'optimze'; did you mean 'optimize'?"),
        (["swap", "a.onnx", "-o", "b.onnx", "--fused"], "--fused; did you mean --fuse?; see `convswap swap"),
        (["compare", "a.onnx", "--device", "gpu"], "unknown device 'gpu'; known: cpu, cuda"),
        (["swap", "", "-o", "out.onnx"], "the name of the model is empty"),
        (["explain", ""], "the name of the model is empty"),
        (["bench", "--first-run", ""], "the name of the model is empty"),
        (["bench", "", "--batch", "1"], "unknown suite ''; known: "),
        (["bench", "", "--alternate", "--batch", "1,2"], "unknown suite ''; known: "),
        (["export", "--mxnet-symbol", "symbol.json"], "--mxnet-params and --image-size missing"),
        (["export", "ece408-2020", "-o", "nowhere/model.onnx"], "nowhere"),
        (["swap", "missing.onnx", "-o", "out.onnx"], "missing.onnx"),
        # "cannot read", and from Python 3.14 on "unknown network" and "no such file".
        (["explain", "n" * 300], " 'nnn"),
        (["swap", "n" * 300, "-o", "out.onnx"], " 'nnn"),
        (["explain", "ece408-2019sp", "--json", "n" * 300], "cannot write 'nnn"),
        (["explain", "ece408-2019sp", *TOO_MANY], f"batch must be at most {2**31 - 1}, but {10**20} was"),
        (["tune", "ece408-2019sp", *TOO_MANY], "batch must be at most"),
        (["compare", "ece408-2019sp", "--data", "random", *TOO_MANY], "batch must be at most"),
        (["compare", "ece408-2019sp", "--data", "random", "--images", TOO_MANY[1]], "images must be at most"),
        (["ladder", "--images", TOO_MANY[1]], "images must be at most"),
        (["bench", *TOO_MANY], "batch must be at most"),
        (["bench", "--alternate", "--batch", f"1,{TOO_MANY[1]}"], "batch must be at most"),
        (["bench", "--first-run", "ece408-2017-low", *TOO_MANY], "batch must be at most"),
        (["bench", "cours"], "'course'"),
        (["bench", "--batch", "1,x"], "'1,x'"),
        (["bench", "--layers", "("], "("),
        (["compair"], "compair"),
        ([], "COMMAND"),
    ],
)
def test_bad_usage_is_one_line_with_what_was_given_or_the_nearest_name(
    work_folder, capsys, arguments, expected
):
    assert expected in refusal(capsys, *arguments)
    assert list(work_folder.iterdir()) == []  # no partial file


def test_a_file_that_the_system_refuses_is_named(work_folder, capsys, monkeypatch):
    def refuse(_options):
        raise PermissionError(13, "Permission denied", "weights.npz")

    monkeypatch.setattr(train, "run", refuse)
    assert refusal(capsys, "train", "ece408-2020") == "convswap: cannot read or write 'weights.npz': " + (
        "Permission denied"
    )


def test_a_file_that_is_no_onnx_model_is_refused(work_folder, capsys):
    Path("text.onnx").write_text("this is not a model")
    assert "text.onnx" in refusal(capsys, "swap", "text.onnx", "-o", "out.onnx")
    assert not Path("out.onnx").exists()


def test_a_model_without_conv_is_refused(work_folder, capsys):
    save_model_of("Relu", "relu.onnx")
    assert "no Conv" in refusal(capsys, "swap", "relu.onnx", "-o", "out.onnx")
    assert "no Conv" in refusal(capsys, "compare", "relu.onnx")


def test_without_onnxruntime_one_line_says_what_to_install():
    # In a separate process: modules imported again would stay attributes of their packages in later tests.
    program = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from convswap.cli.main import main\n"
        "sys.exit(main(['compare', 'ece408-2019sp']))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    # ONNX Runtime's CUDA provider needs cuBLAS, which its extras do not install.
    assert 'pip install "onnxruntime-gpu[cuda,cudnn]" nvidia-cublas on a machine with an NVIDIA card' in line
    assert "pip install onnxruntime on any other" in line


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("", "compare"),
        ("", "explain"),
        ("raise ImportError('libonnxruntime.so: no such file')", "explain"),
        ("import onnxruntime.capi.absent", "explain"),
    ],
    ids=["empty-compare", "empty-explain", "a library missing", "a part missing"],
)
def test_an_onnxruntime_installed_halfway_is_one_line(work_folder, module, command):
    (work_folder / "onnxruntime").mkdir()
    (work_folder / "onnxruntime" / "__init__.py").write_text(module)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(work_folder), os.environ.get("PYTHONPATH", "")]),
    }
    result = subprocess.run(
        [*COMMAND, command, "ece408-2019sp", "--device", "cpu"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("convswap: the installed onnxruntime is broken: ")
    assert line.endswith("; `convswap doctor` says what to type")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal_runs_no_thread_beside_what_is_measured(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    before = threading.active_count()
    with progress_line() as progress:
        progress("timing the first")
        assert threading.active_count() == before
        assert "timing the first" in terminal.getvalue()
        progress("timing the second")
        assert "timing the second" in terminal.getvalue()


def test_an_interrupt_exits_130_without_a_traceback(work_folder):
    arguments = ["compare", "ece408-2019fa", "--data", "synthetic", "--device", "cpu"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr.readline()  # the command is running
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors


# Program that interrupts itself when the module {name} is loaded.
INTERRUPTED = """\
import os, signal, sys
from convswap.__main__ import run
class Finder:
    def find_spec(name, *_):
        if name == {name!r}:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
signal.signal(signal.SIGINT, signal.{handler})
sys.argv = ["convswap", "explain", "ece408-2019fa", "--device", "cpu"]
sys.exit(run())
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "handler", "status"),
    [
        # The command line itself, then a command.
        ("rich.console", "default_int_handler", -signal.SIGINT),
        ("numpy", "default_int_handler", 130),
        # Background programs of a shell ignore SIGINT.
        ("rich.console", "SIG_IGN", 0),
        ("numpy", "SIG_IGN", 0),
    ],
)
def test_an_interrupt_while_modules_are_loaded_is_silent(name, handler, status):
    script = INTERRUPTED.format(name=name, handler=handler)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (status, "")


def test_a_closed_pipe_is_silent(work_folder):
    command = " ".join(COMMAND) + " export --list | head -c 1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert result.returncode == 0
    assert result.stderr == ""


def test_a_closed_pipe_loses_no_result(network, work_folder):
    arguments = "compare network.onnx --data synthetic --images 20 --device cpu --json comparison.json"
    command = " ".join(COMMAND) + f" {arguments} | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in result.stderr
    jsonschema.validate(json.loads(Path("comparison.json").read_text()), SCHEMA)


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "network.onnx", "--json", "network.onnx"],
        ["compare", "network.onnx", "--json", "./linked.onnx"],
        ["swap", "network.onnx", "-o", "swapped.onnx", "--report", "network.onnx"],
        ["swap", "network.onnx", "-o", "swapped.onnx", "--report", "swapped.onnx"],
        ["export", "--mxnet-symbol", "network.onnx", "--mxnet-params", "p", "-o", "network.onnx"],
        ["export", "--alexnet", "network.onnx", "-o", "network.onnx"],
    ],
)
def test_no_result_replaces_a_file_that_the_command_uses(network, work_folder, capsys, arguments):
    Path("linked.onnx").hardlink_to("network.onnx")
    before = network.read_bytes()
    message = refusal(capsys, *arguments)
    assert "cannot" in message
    assert network.read_bytes() == before
    assert not Path("swapped.onnx").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["swap", "model.onnx", "-o", "new.onnx", "--report", "weights.bin"],
        ["swap", "model.onnx", "-o", "new.onnx", "--report", "new.onnx.data"],
        ["explain", "model.onnx", "--json", "weights.bin"],
        ["tune", "model.onnx", "--json", "weights.bin"],
        ["compare", "model.onnx", "--json", "weights.bin"],
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[-2:]),
)
def test_result_is_not_written_over_the_weights_of_a_model(arguments, work_folder, capsys):
    onnx.save(
        swap_models.two_convs(),
        "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=64,
    )
    before = Path("weights.bin").read_bytes()
    line = refusal(capsys, *arguments)
    assert line.endswith("; choose another name") and f"cannot write '{arguments[-1]}': it is " in line
    assert f", and {arguments[-2]} would replace it; " in line
    assert Path("weights.bin").read_bytes() == before
    assert sorted(path.name for path in work_folder.iterdir()) == ["model.onnx", "weights.bin"]


def test_model_that_fails_at_its_run_is_reported_once_and_without_colour(work_folder, capfd):
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    onnx.save(graph_model([node], {"x": ["n", 3]}, {"shape": np.array([7])}), "seven.onnx")
    assert main(["compare", "seven.onnx", "--device", "cpu", "--images", "4"]) == 2
    written = capfd.readouterr().err
    assert "\x1b" not in written
    assert all(line.startswith("convswap: ") for line in written.splitlines())


@pytest.mark.extended
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_no_exit_status(closed):
    for arguments, status in (("export --list", 0), ("compare no-such-file.onnx", 2)):
        command = f"{sys.executable} -m convswap {arguments} {closed}"
        result = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert result.returncode == status
        assert "Traceback" not in result.stderr


def test_help_lists_every_command_in_a_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    groups = text.split("\n\n")
    for group in GROUPS.values():
        for command in group:
            (listed,) = [each for each in groups if f"\n  {command.__name__.rpartition('.')[2]} " in each]
            assert command.HELP in listed
    assert all(len(line) <= 100 for line in text.splitlines())


def completions_of(words: str, tmp_path: Path) -> list[str]:
    """Return the completions that a shell gets for `words`."""
    output_file = tmp_path / "answer"
    completion_variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(output_file),
    }
    environment = {**os.environ, **completion_variables, "COMP_LINE": words, "COMP_POINT": str(len(words))}
    subprocess.run(COMMAND, env=environment, check=True, capture_output=True, cwd=tmp_path)
    return [each.strip() for each in output_file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("convswap com", ["compare", "completion"]),
        ("convswap compare res", ["resnet50"]),
        ("convswap bench one", ["one-d", "one-image"]),
        ("convswap swap --al", ["--algorithm"]),
    ],
)
def test_a_shell_completes_commands_names_and_options(tmp_path, words, expected):
    assert completions_of(words, tmp_path) == expected


def test_a_shell_completes_models_among_files(tmp_path):
    (tmp_path / "restored.onnx").touch()
    assert completions_of("convswap explain res", tmp_path) == ["resnet50", "restored.onnx"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_a_shell_reads(capsys, shell):
    assert main(["completion", shell]) == 0
    assert "_ARGCOMPLETE" in capsys.readouterr().out


def test_completion_of_another_shell_is_refused(capsys):
    assert "unknown shell 'tcsh'" in refusal(capsys, "completion", "tcsh")


def test_completion_without_argcomplete_says_what_to_type(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert "pip install argcomplete" in refusal(capsys, "completion", "bash")


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"convswap {_native.__version__}\n")


def full_disk(*_written):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["explain", "network.onnx", "--device", "cpu", "--json"], "conv1"),
        (
            ["compare", "network.onnx", "--images", "9", "--device", "cpu", "--no-layers", "--html"],
            "whole model",
        ),
        (["bench", "--layers", "2017-conv1", "--batch", "1", "--device", "cpu", "--json"], "2017-conv1"),
        (["swap", "network.onnx", "-o", "s.onnx", "--report"], "2 Conv swapped"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_results_that_cannot_be_written_are_shown_before_the_error(
    network, capsys, monkeypatch, arguments, shown
):
    monkeypatch.setattr("convswap.output.files._replace", full_disk)
    assert main([*arguments, "result.png"]) == 2
    captured = capsys.readouterr()
    assert shown in captured.out
    assert captured.err.splitlines()[-1] == "convswap: cannot write 'result.png': No space left on device"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["optimize", "network.onnx", "-o", "pipe"], "'pipe': it is not a regular file"),
        (["export", "ece408-2019sp", "-o", "pipe"], "'pipe': it is not a regular file"),
        (["explain", "network.onnx", "--json", "/proc/r.json"], "the folder '/proc' is not writable"),
        (["optimize", "network.onnx", "-o", "network.onnx"], "it is the model that is read, and -o would"),
        (
            ["optimize", "network.onnx", "-o", "o.onnx", "--json", "o.onnx"],
            "it is what -o writes, and --json",
        ),
        (
            ["explain", "network.onnx", "--inputs", "i.npz", "--json", "i.npz"],
            "it is what --inputs reads, and",
        ),
        (
            ["lab", "submit", "kernels", "network.onnx", "--csv", "network.onnx"],
            "it is the model that is read",
        ),
        (
            ["export", "ece408-2020", "--weights", "i.npz", "-o", "i.npz"],
            "it is what --weights reads, and -o",
        ),
    ],
    ids=lambda value: " ".join(value[:1] + value[-2:]) if isinstance(value, list) else "",
)
def test_a_result_that_cannot_be_written_is_refused_before_the_work(network, capsys, arguments, expected):
    os.mkfifo("pipe")
    Path("i.npz").write_bytes(b"values")
    before = network.read_bytes()
    capsys.readouterr()
    assert expected in only_line_of_refusal(capsys, *arguments)
    assert (network.read_bytes(), Path("i.npz").read_bytes()) == (before, b"values")
