"""Host code of the CUDA algorithms, on a fake driver that runs no kernel and reports every misuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from convswap import _native
from fake_card import LAYER, needs_compiler, run_beside_card

# Arguments: names of algorithms separated by commas, the extents of x and w, and the padding at each end.
# `separable` gets a depthwise convolution in front.
CONVOLVE = """
import sys
import numpy as np
from convswap import _native
names, x_shape, w_shape = sys.argv[1], *(tuple(map(int, text.split(","))) for text in sys.argv[2:4])
attributes = {"pads": [int(text) for text in sys.argv[4:]] * 4} if sys.argv[4:] else {}
front = {"depthwise_shape": (x_shape[1], 1, 3, 3)} if names == "separable" else {}
if front:
    attributes["depthwise_pads"] = [1] * 4
problem = _native.Problem(x_shape, w_shape, **front, **attributes)
shapes = [x_shape, w_shape, *front.values()]
x, w, *d = (_native.DeviceArray.from_numpy(np.ones(shape, np.float32)) for shape in shapes)
y = _native.DeviceArray(problem.output_shape)
y.poison()
for name in names.split(","):
    _native.conv_device(x, w, None, y, algorithm=name, **dict(zip(["depthwise"], d)), **attributes)
    assert y.to_numpy().shape == tuple(problem.output_shape)
    print(_native.describe_plan(problem, "cuda", name))
"""
ONE_TAP = ("2,16,9,9", "24,16,1,1")
PADDED = ("2,1,9,9", "1,1,3,3", "1")
PAIR = ("2,16,9,12", "24,16,1,1")
ALGORITHMS = [entry.name for entry in _native.catalog() if entry.device == "cuda"]
# All rungs support this layer. Rungs before the one with tensor cores run on every card.
RUNGS = [name for name in ALGORITHMS if name.startswith("ladder_")]
OF_EVERY_CARD = [name for name in RUNGS if name < "ladder_14"]
OLDEST = 75


# Argument: the element type. A residual and a pool, so that three tensors are transposed.
TRANSPOSE = """
import sys
import ml_dtypes
import numpy as np
from convswap import _native
element_type = np.dtype(sys.argv[1])
attributes = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
attributes |= {f"{name}_layout": "NHWC" for name in ("input", "output", "residual")}
shapes = [(2, 9, 8, 5), (6, 5, 3, 2), (2, 7, 7, 6)]
x, w, z = (_native.DeviceArray.from_numpy(np.ones(shape, element_type)) for shape in shapes)
problem = _native.Problem(*shapes[:2], False, sys.argv[1], residual_shape=shapes[2], **attributes)
y = _native.DeviceArray(problem.output_shape, sys.argv[1])
_native.conv_device(x, w, None, y, residual=z, algorithm="naive", **attributes)
print(_native.describe_plan(problem, "cuda", "naive"))
"""


@needs_compiler
@pytest.mark.parametrize(("element_type", "kernel"), [("float32", "If"), ("bfloat16", "INS_7Float16")])
def test_tensors_in_nhwc_are_transposed_before_and_after_the_convolution(
    element_type: str, kernel: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    result = run_beside_card(TRANSPOSE, element_type, FAKE_LOG=log)
    assert result.returncode == 0, result.stderr
    lines = log.read_text().splitlines()
    launched = [line.split()[1] for line in lines if line.startswith("launch ")]
    assert ["layout" in name for name in launched] == [True, True, False, True]
    assert f"layout6kernel{kernel}" in launched[0]
    x, residual, convolution, y = result.stdout.strip().split("; ")
    assert x == "x to NCHW, transposed by 4 blocks of 256 threads"
    assert residual.startswith("residual to NCHW, ") and y.startswith("y to NHWC, ")
    assert "one output each" in convolution
    assert not [line for line in lines if line.startswith("left ")]


# Arguments: an algorithm, the layout of x and y, and the extents of x and w, with 16 channels. The weights of
# the first run are prepared beforehand.
PREPARE = """
import sys
import numpy as np
from convswap import _native
name, layout, *shapes = sys.argv[1:3] + [tuple(map(int, text.split(","))) for text in sys.argv[3:]]
attributes = {"input_layout": layout, "output_layout": layout, "group": 16 // shapes[1][1]}
x, w = (_native.DeviceArray.from_numpy(np.ones(shape, np.float16)) for shape in shapes)
y = _native.DeviceArray(_native.Problem(*shapes, False, "float16", **attributes).output_shape, "float16")
for prepared in (True, False):
    _native.conv_device(x, w, None, y, algorithm=name, prepared=prepared, **attributes)
"""
IN_NHWC, DENSE, DEPTHWISE = "2,9,9,16", "24,16,3,3", "16,1,3,3"


@needs_compiler
@pytest.mark.parametrize(
    ("arguments", "kernels"),
    [
        (("channels_last", "NHWC", IN_NHWC, DENSE), ["prepare", "kernel"]),
        (("channels_last_mma", "NHWC", IN_NHWC, DENSE), ["prepare", "kernel"]),
        (("channels_last_depthwise", "NHWC", IN_NHWC, DEPTHWISE), ["prepare", "sliding"]),
        (("many_channels", "NCHW", "2,16,9,9", DENSE), ["prepare", "prepare", "kernel"]),
    ],
    ids=["channels_last", "channels_last_mma", "channels_last_depthwise", "many_channels"],
)
def test_scratch_memory_has_room_for_weights_only_if_the_run_prepares_them(
    arguments: tuple[str, ...], kernels: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    result = run_beside_card(PREPARE, *arguments, FAKE_LOG=log)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in log.read_text().splitlines()]
    launched = [words[1] for words in lines if words[0] == "launch"]
    assert all(part in name for part, name in zip(kernels * 2, launched, strict=True)), launched
    # Each run allocates scratch memory and then prepared weights, a word more than it needs.
    allocated = [int(words[1]) for words in lines if words[0] == "allocate"]
    scratch, weights, scratch_with_weights, no_weights = allocated[-4:]
    assert weights > no_weights == 4
    assert 0 <= scratch_with_weights - (scratch + weights - 4) < 256


# x and the residual are NCHW, y is NHWC: the convolution in NHWC needs two transpositions.
TRANSPOSE_TO_NHWC = """
import numpy as np
from convswap import _native
attributes = {"output_layout": "NHWC", "pads": [1] * 4, "activation": "Relu"}
shapes = [(2, 16, 9, 8), (24, 16, 3, 3), (2, 24, 9, 8)]
x, w, z = (_native.DeviceArray.from_numpy(np.ones(shape, np.float16)) for shape in shapes)
problem = _native.Problem(*shapes[:2], False, "float16", residual_shape=shapes[2], **attributes)
y = _native.DeviceArray(problem.output_shape, "float16")
_native.conv_device(x, w, None, y, residual=z, algorithm="channels_last_mma", **attributes)
print(_native.describe_plan(problem, "cuda", "channels_last_mma"))
"""


@needs_compiler
def test_a_card_of_7_5_transposes_float16_to_nhwc(tmp_path: Path) -> None:
    log = tmp_path / "log"
    result = run_beside_card(TRANSPOSE_TO_NHWC, FAKE_LOG=log, FAKE_CAPABILITY=OLDEST)
    assert result.returncode == 0, result.stderr
    launched = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("launch ")]
    parts = ("7prepare", "layout6kernel", "layout6kernel", "9kernel_75")
    assert [part in name for part, name in zip(parts, launched, strict=True)] == [True] * len(parts)
    x, residual, convolution = result.stdout.strip().split("; ")
    assert x.startswith("x to NHWC, ") and residual.startswith("residual to NHWC, ")
    assert convolution.startswith("tiles of ")


@pytest.mark.extended
@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "capability"),
    [
        pytest.param(",".join(OF_EVERY_CARD), OLDEST, id="rungs of every card"),
        pytest.param(",".join(RUNGS[len(OF_EVERY_CARD) :]), 90, id="rungs of newer cards"),
        # `quantised` takes codes. The others that are left out take NHWC tensors, and load a kernel for
        # unaligned ones that they do not start here.
        *(
            (name, 90)
            for name in ALGORITHMS
            if name not in (*RUNGS, "quantised") and not name.startswith("channels_last")
        ),
    ],
)
def test_every_algorithm_loads_and_starts_its_kernels(names: str, capability: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    layer = {"pointwise": ONE_TAP, "sliding_rows": PADDED, "separable": PAIR}.get(names, LAYER)
    result = run_beside_card(CONVOLVE, names, *layer, FAKE_LOG=log, FAKE_CAPABILITY=capability)
    assert result.returncode == 0, result.stderr
    lines = log.read_text().splitlines()
    launched = {line.split()[1] for line in lines if line.startswith("launch ")}
    assert launched and all(name.startswith("_ZN8convswap") for name in launched)
    assert launched == {line.split()[1] for line in lines if line.startswith("load ")}
    # The rungs keep an array of zeros as the default bias; all other memory is freed.
    leaks = [line for line in lines if line.startswith("left ")]
    assert leaks == (["left 1 allocations"] if "ladder_" in names else [])


@needs_compiler
def test_runs_that_are_timed_are_all_enqueued_before_the_first_begins(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = CONVOLVE.replace("algorithm=name, **", "algorithm=name, runs=5, **")
    result = run_beside_card(program, "naive", *LAYER, FAKE_LOG=log)
    assert result.returncode == 0, result.stderr
    lines = log.read_text().splitlines()
    started = [line.split()[0] for line in lines if line.startswith(("host ", "launch "))]
    # The host function that blocks the stream until all launches are enqueued. The measurement repeats while
    # the host takes longer than it blocks.
    assert started[:6] == ["host", *["launch"] * 5] and len(started) % 6 == 0


@needs_compiler
@pytest.mark.parametrize("multiprocessors", [132, 14])
def test_a_mig_instance_counts_as_a_card_of_fewer_multiprocessors(
    multiprocessors: int, tmp_path: Path
) -> None:
    """CUDA reports a MIG instance like a card."""
    program = """
import numpy as np
from convswap import _native
print(_native.describe_plan(_native.Problem((64, 64, 56, 56), (64, 64, 1, 1)), "cuda", "pointwise"))
"""
    result = run_beside_card(program, FAKE_MULTIPROCESSORS=multiprocessors)
    # Persistent blocks, one for each multiprocessor.
    assert f" {multiprocessors} x 1 blocks" in result.stdout, result.stdout + result.stderr


@needs_compiler
def test_a_kernel_that_takes_other_arguments_than_the_host_gives_is_never_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    result = run_beside_card(CONVOLVE, "naive", *LAYER, FAKE_LOG=log, FAKE_PARAMETER_BYTES=1)
    assert "naive::kernel<float> takes 1 bytes, and is given " in result.stderr
    assert "launch" not in log.read_text()


@needs_compiler
def test_threads_that_want_the_same_kernels_at_once_compile_and_load_each_once(tmp_path: Path) -> None:
    program = """
import threading
import numpy as np
from convswap import _native
start, failures = threading.Barrier(16), []

def convolve():
    try:
        shapes = (1, 1, 9, 9), (1, 1, 3, 3)
        x, w = (_native.DeviceArray.from_numpy(np.ones(shape, np.float32)) for shape in shapes)
        y = _native.DeviceArray((1, 1, 7, 7))
        start.wait()
        for algorithm in ("naive", "tiled"):
            _native.conv_device(x, w, None, y, algorithm=algorithm)
    except Exception as error:
        failures.append(error)

threads = [threading.Thread(target=convolve) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failures, _native.kernel_store()["kernels"])
"""
    log = tmp_path / "log"
    result = run_beside_card(program, cache=tmp_path / "cache", FAKE_LOG=log)
    assert result.stdout == "[] 2\n", result.stdout + result.stderr
    words = [line.split()[0] for line in log.read_text().splitlines()]
    assert words.count("load") == 2 and words.count("launch") == 32


@needs_compiler
def test_a_kernel_is_of_the_device_that_it_runs_on(tmp_path: Path) -> None:
    program = """
import numpy as np
from convswap import _native
for device in (1, 0, 1):
    shapes = (1, 1, 9, 9), (1, 1, 3, 3)
    x, w = (_native.DeviceArray.from_numpy(np.ones(shape, np.float32), device) for shape in shapes)
    y = _native.DeviceArray((1, 1, 7, 7), device=device)
    _native.conv_device(x, w, None, y, algorithm="naive")
"""
    log = tmp_path / "log"
    result = run_beside_card(program, FAKE_LOG=log, FAKE_CARDS=2)
    assert result.returncode == 0, result.stderr
    lines = [line for line in log.read_text().splitlines() if line.startswith(("load", "launch"))]
    assert sum(line.startswith("load") for line in lines) == 1
    assert [line[-1] for line in lines if line.startswith("launch")] == ["1", "0", "1"]


def test_without_a_compiler_one_line_says_what_to_install(tmp_path: Path) -> None:
    for nowhere in (tmp_path / "none.so", tmp_path):
        result = run_beside_card(CONVOLVE, "naive", *LAYER, cache=tmp_path, CONVSWAP_NVRTC=nowhere)
        assert result.returncode == 1
        message = result.stderr.splitlines()[-1]
        assert message.startswith(
            f"RuntimeError: CONVSWAP_NVRTC is {nowhere}, which is not NVRTC of CUDA 12 to 13: "
        )


@needs_compiler
def test_a_compiler_newer_than_the_driver_is_not_used(tmp_path: Path) -> None:
    compiler = _native.kernel_compiler()
    if int(str(compiler["version"]).partition(".")[0]) < 13:
        pytest.skip("NVRTC of CUDA 12 is no newer than any driver")
    settings = {"CONVSWAP_NVRTC": compiler["path"], "FAKE_DRIVER_VERSION": 12080}
    result = run_beside_card(CONVOLVE, "naive", *LAYER, cache=tmp_path, **settings)
    assert result.stderr.splitlines()[-1] == (
        f"RuntimeError: CONVSWAP_NVRTC is {compiler['path']}, which is not NVRTC of CUDA 12 to 12"
    )


def test_a_forked_child_gets_the_error_that_it_cannot_use_the_card(tmp_path: Path) -> None:
    program = """
import os
from convswap import _native
assert len(_native.cuda_devices()) == 1
child = os.fork()
if child == 0:
    try:
        assert _native.cuda_devices() == []
        _native.DeviceArray((1,))
    except RuntimeError as error:
        os._exit(0 if "was forked from one that has used the card" in str(error) else 2)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = run_beside_card(program, cache=tmp_path)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"FAKE_CARDS": 0}, "the NVIDIA driver does not start: "), ({}, "")],
    ids=["no card", "card"],
)
def test_a_driver_without_a_card_is_none(settings, message: str, tmp_path: Path) -> None:
    program = """
from convswap import _native
print(len(_native.cuda_devices()))
try:
    _native.DeviceArray((1,))
except RuntimeError as error:
    print(error)
"""
    result = run_beside_card(program, cache=tmp_path, **settings)
    count, _, words = result.stdout.partition("\n")
    assert count == ("0" if message else "1")
    assert words.startswith(message) and bool(words) == bool(message)


@needs_compiler
def test_kernels_to_be_compiled_are_reported_until_they_are_compiled(tmp_path: Path) -> None:
    program = """
import numpy as np
from convswap import _native
problem = _native.Problem((1, 1, 9, 9), (1, 1, 3, 3))
print(_native.what_is_compiled(problem, "cuda", "naive"))
_native.compile_kernel("naive::kernel<float>", 90)
print(_native.what_is_compiled(problem, "cuda", "naive") or "nothing")
_native.clear_kernel_store()
x, w = (_native.DeviceArray.from_numpy(np.ones(shape, np.float32)) for shape in ((1, 1, 9, 9), (1, 1, 3, 3)))
_native.conv_device(x, w, None, _native.DeviceArray((1, 1, 7, 7)), algorithm="naive")
_native.clear_kernel_store()
print(_native.what_is_compiled(problem, "cuda", "naive") or "nothing")
"""
    result = run_beside_card(program, cache=tmp_path)
    assert result.returncode == 0, result.stderr
    status, stored, loaded = result.stdout.splitlines()
    assert status.startswith("kernels are compiled for Fake card 0 by NVRTC ")
    assert status.endswith(f"now naive::kernel<float>; they are kept in {tmp_path / 'kernels'}")
    assert (stored, loaded) == ("nothing", "nothing")


@needs_compiler
def test_card_is_used_as_an_older_one_by_an_environment_variable(tmp_path: Path) -> None:
    program = """
from convswap import _native
print(_native.cuda_devices()[0]["compute_capability"], _native.cuda_devices()[0]["shared_memory_per_block"])
problem = _native.Problem((64, 64, 56, 56), (64, 64, 3, 3))
print(_native.why_not(problem, "implicit_gemm", "cuda"))
print(_native.describe_plan(problem, "cuda", "sliced_k"))
"""
    cache = tmp_path / "cache"
    result = run_beside_card(program, cache=cache, CONVSWAP_COMPUTE_CAPABILITY="8.0")
    assert result.returncode == 0, result.stderr
    facts, reason, _plan = result.stdout.splitlines()
    assert facts == f"80 {163 << 10}"
    assert reason.startswith("it needs compute capability 9.0, and ") and reason.endswith(" has 8.0")
    # PTX of the older capability, which the driver compiles for the card, and no code for the card's own.
    (kernel,) = [path for path in cache.rglob("*") if path.is_file() and "sliced_k" in path.name]
    assert kernel.name.startswith("compute_80_") and b".target sm_80" in kernel.read_bytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("8", "CONVSWAP_COMPUTE_CAPABILITY is '8': expected a compute capability, such as 8.0"),
        ("7.0", "CONVSWAP_COMPUTE_CAPABILITY is '7.0': expected 7.5 or newer"),
    ],
)
def test_wrong_capability_in_the_environment_is_named(value: str, message: str) -> None:
    program = "from convswap import _native; print(_native.cuda_devices())"
    result = run_beside_card(program, CONVSWAP_COMPUTE_CAPABILITY=value)
    assert result.returncode != 0 and message in result.stderr


def test_newer_capability_in_the_environment_changes_nothing() -> None:
    program = "from convswap import _native; print(_native.cuda_devices()[0]['compute_capability'])"
    result = run_beside_card(program, CONVSWAP_COMPUTE_CAPABILITY="12.0")
    assert result.stdout == "90\n", result.stderr


@pytest.mark.parametrize(
    "command", [["bench", "course"], ["compare", "ece408-2019fa", "--data", "synthetic"]]
)
@pytest.mark.parametrize(
    ("capability", "message"),
    [("12.0", "--compute-capability 12.0: Fake card 0 has 9.0; give this or an older one, or leave it out")],
)
def test_commands_refuse_a_newer_capability_than_the_card_s(
    command: list[str], capability: str, message: str
) -> None:
    program = "import sys; from convswap.cli.main import main; sys.exit(main(sys.argv[1:]))"
    result = run_beside_card(program, *command, "--compute-capability", capability)
    assert result.returncode == 2 and result.stderr.splitlines()[-1] == f"convswap: {message}"
