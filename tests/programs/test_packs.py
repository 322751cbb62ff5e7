"""Packs: kernels compiled ahead of time, for cards of other machines and for machines without a compiler."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import onnxruntime
import pytest
from convswap import _native, register
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.planning.warm import warm
from fake_card import LAYER, needs_compiler, run_beside_card

# Arguments: the extents of x and w, and a JSON list of options of conv_device, each for one call.
# Prints "computed" or the error of each call.
CONVOLVE = """
import json, sys
import numpy as np
from convswap import _native
x_shape, w_shape = (tuple(map(int, text.split(","))) for text in sys.argv[1:3])
calls = json.loads(sys.argv[3])
problem = _native.Problem(x_shape, w_shape)
x, w = (_native.DeviceArray.from_numpy(np.ones(shape, np.float32)) for shape in (x_shape, w_shape))
y = _native.DeviceArray(problem.output_shape)
for options in calls:
    try:
        _native.conv_device(x, w, None, y, **options)
        print("computed")
    except RuntimeError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with the layer's kernels for compute capability 9.0, in batches of two."""
    path = tmp_path_factory.mktemp("packs") / "layer.pack"
    writer = _native.PackWriter()
    problem = _native.Problem(*(tuple(map(int, text.split(","))) for text in LAYER))
    for name in _native.kernels_of(problem, "cuda", compute_capability=90):
        assert writer.add(name, 90) > 1000
    writer.write(str(path))
    return path


def convolve(*calls: dict, cache: Path, log: Path, **settings: object) -> list[str]:
    result = run_beside_card(CONVOLVE, *LAYER, json.dumps(calls), cache=cache, FAKE_LOG=log, **settings)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@needs_compiler
def test_a_pack_is_all_that_its_model_needs(pack: Path, tmp_path: Path) -> None:
    no_compiler = {"CONVSWAP_NVRTC": tmp_path / "none.so"}
    log = tmp_path / "log"
    lines = convolve({"pack": str(pack), "compiles": False}, cache=tmp_path, log=log, **no_compiler)
    assert lines == ["computed"]
    assert "launch _ZN8convswap" in log.read_text()
    assert not list((tmp_path / "kernels").glob("*.kernel"))


@needs_compiler
def test_what_the_driver_refuses_of_a_pack_is_compiled(pack: Path, tmp_path: Path) -> None:
    packed = {"pack": str(pack)}
    lines = convolve(packed, cache=tmp_path, log=tmp_path / "log", FAKE_REFUSES=1)
    assert lines == ["computed"]
    assert len(list((tmp_path / "kernels").glob("*.kernel"))) == 1
    # A session that must not compile gets an error; another session of the process still computes.
    lines = convolve(
        {**packed, "compiles": False}, packed, cache=tmp_path, log=tmp_path / "log", FAKE_REFUSES=1
    )
    assert "cuLibraryLoadData" in lines[0]
    assert lines[1] == "computed"


@needs_compiler
def test_what_a_pack_lacks_is_named_with_the_command_that_makes_it(pack: Path, tmp_path: Path) -> None:
    missing = "naive::kernel<float> for compute capability 9.0: make one with convswap warm MODEL "
    missing += "--compute-capability 9.0 -o FILE.pack"
    without = {"algorithm": "naive", "compiles": False}
    lines = convolve(
        {**without, "pack": str(pack)},
        without,
        {"algorithm": "naive"},
        without,
        cache=tmp_path,
        log=tmp_path / "log",
    )
    assert lines == [
        "the session compiles nothing (convswap.compile=never), and its pack "
        f"'{pack}' does not have {missing}",
        "the session compiles nothing (convswap.compile=never), and it has no pack (convswap.pack) with "
        f"{missing}",
        "computed",
        # The kernel is loaded now.
        "computed",
    ]


@needs_compiler
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"nonsense", "is not a pack"),
        (lambda data: b"", "is not a pack"),
        (lambda data: data[:-1], "is damaged"),
        (lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], "is damaged"),
        (lambda data: data.replace(b" 90 ", b" 80 ", 1), "is damaged"),
        (
            lambda data: data[:16] + b"0123456789abcdef" + data[32:],
            f"is of another version of convswap than this library, {_native.__version__}",
        ),
    ],
    ids=["nonsense", "empty", "cut", "a bit", "another card's", "another version's"],
)
def test_a_pack_that_cannot_be_used_is_refused_when_it_is_named(
    damage, reason: str, pack: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.pack"
    other.write_bytes(damage(pack.read_bytes()))
    message = f"the pack '{other}' {reason}: make it with convswap warm -o FILE.pack"
    with pytest.raises(ConvswapError) as raised:
        _native.pack_contents(str(other))
    assert str(raised.value) == message
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("convswap.pack", str(other))
    with pytest.raises(ConvswapError) as raised:
        register(options)
    assert message in str(raised.value)


def test_entries_that_say_nothing_known_are_refused(tmp_path: Path) -> None:
    for key, value, message in (
        ("convswap.compile", "sometimes", "convswap.compile is 'sometimes'; expected auto or never"),
        ("convswap.pack", str(tmp_path / "none"), "cannot be read (No such file or directory)"),
    ):
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(key, value)
        with pytest.raises(ConvswapError) as raised:
            register(options)
        assert message in str(raised.value)


def test_options_keep_what_they_were_registered_with() -> None:
    options = onnxruntime.SessionOptions()
    register(options)
    register(options)
    options.add_session_config_entry("convswap.compile", "never")
    with pytest.raises(ConvswapError, match=r"registered with another convswap\.pack, convswap\.compile or"):
        register(options)


@needs_compiler
def test_a_card_uses_the_kernels_that_it_can_run(tmp_path: Path) -> None:
    path = tmp_path / "generic.pack"
    writer = _native.PackWriter()
    writer.add("naive::kernel<float>", 80)
    writer.add("naive::kernel<double>", 90)
    writer.add("naive::kernel<double>", 80, is_portable=True)
    writer.write(str(path))
    assert _native.pack_contents(str(path)) == [("naive::kernel<double>", 90), ("naive::kernel<float>", 80)]
    naive = {"algorithm": "naive", "pack": str(path), "compiles": False}
    # The kernel's compute capability, newer ones of its generation, and other generations.
    for capability, computes in ((80, True), (86, True), (89, True), (90, False), (75, False)):
        (line,) = convolve(naive, cache=tmp_path, log=tmp_path / "log", FAKE_CAPABILITY=capability)
        assert (line == "computed") == computes, line


@pytest.mark.extended
@needs_compiler
def test_a_model_is_warmed_for_cards_that_are_not_here(tmp_path: Path) -> None:
    path = tmp_path / "model.pack"
    progress_texts: list[str] = []
    result = warm(
        "ece408-2017-high",
        batches=[1, 64],
        compute_capabilities=[80, 90, 80],
        pack=path,
        progress=progress_texts.append,
    )
    assert sorted(_native.pack_contents(str(path))) == sorted(result.kernels)
    assert {capability for _, capability in result.kernels} == {80, 90}
    assert "compiled 1 of " in "".join(progress_texts)
    # Exactly the kernels that the planner selects for these batches.
    problem = _native.Problem((64, 1, 28, 28), (50, 1, 5, 5), True)
    assert (*_native.kernels_of(problem, "cuda", compute_capability=90), 90) in result.kernels


@needs_compiler
def test_a_store_that_cannot_be_used_costs_a_note_and_a_pack_is_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONVSWAP_CACHE", str(tmp_path / "file"))
    pack = tmp_path / "model.pack"
    arguments = ["ece408-2017-high", "--batch", "1", "--compute-capability", "9.0", "-o", str(pack)]
    assert main(["warm", *arguments]) == 0
    captured = capsys.readouterr()
    assert "convswap: the kernel store is not used: it cannot be made: Not a directory\n" in captured.err
    assert "not stored" in captured.out and _native.pack_contents(str(pack))


@needs_compiler
def test_a_pack_is_written_into_a_device_and_does_not_replace_it(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    warm("ece408-2017-high", batches=1, compute_capabilities="9.0", pack=pipe)
    reader.join()
    (tmp_path / "copy").write_bytes(read[0])
    assert pipe.is_fifo() and _native.pack_contents(str(tmp_path / "copy"))


# With the fake card's number of multiprocessors: a typical card may have more and select other kernels.
WARM = """
from convswap import _native
from convswap.planning import warm
from convswap.runtime.cards import cuda_cards
from convswap.runtime.device import Device
cards = {None: Device("cuda", "here", cuda_cards(_native)[0]), "cpu": Device("cpu", "asked for")}
warm.choose_device = lambda name=None: cards[name]
for kernel, capability in warm.warm("ece408-2017-high", batches=[64]).kernels:
    print(capability, kernel)
problem = _native.Problem((64, 1, 28, 28), (50, 1, 5, 5), True)
(present,), (typical,) = (_native.kernels_of(problem, "cuda", compute_capability=each) for each in (0, 90))
assert present != typical, present
print(present)
"""


@needs_compiler
def test_a_model_is_warmed_for_the_card_that_is_here(tmp_path: Path) -> None:
    result = run_beside_card(WARM, cache=tmp_path, FAKE_MULTIPROCESSORS=8)
    assert result.returncode == 0, result.stderr
    *warmed, kernel = result.stdout.splitlines()
    assert f"90 {kernel}" in warmed, warmed


def test_a_model_cannot_be_warmed_for_no_card() -> None:
    if _native.cuda_devices():
        pytest.skip("there is a card")
    with pytest.raises(ConvswapError, match=r"^there is no card to compile for: .*--compute-capability 9"):
        warm("ece408-2017-high")


@needs_compiler
def test_a_session_is_registered_with_a_pack_from_python(pack: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    register(options, pack=pack, compiles=False)
    assert options.get_session_config_entry("convswap.pack") == str(pack)
    assert options.get_session_config_entry("convswap.compile") == "never"
    for unreadable in (tmp_path / "none", tmp_path):
        with pytest.raises(ConvswapError, match=r"cannot be read"):
            register(onnxruntime.SessionOptions(), pack=unreadable)
