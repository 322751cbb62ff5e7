"""Decoding processes: their number does not matter, and one that is killed loses nothing."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from pathlib import Path

import pytest
from convswap.errors import ConvswapError
from convswap.evaluation import evaluate, samples
from image_data import EndsProcess, classifier, write_images


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "_BLOCK_SAMPLES", 8)
    return write_images(tmp_path / "images")


def memory_files():
    files = []
    for file in Path("/proc/self/fd").iterdir():
        # Other threads close files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            files += [file] if "memfd:convswap" in str(file.readlink()) else []
    return files


def run(images, processes):
    used, options = [], {"batch": 4, "device": "cpu", "processes": processes}
    options["progress"] = lambda _: used.extend(memory_files())
    evaluation = evaluate.evaluate(classifier(), images, **options)
    assert used and not memory_files()
    result = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    return result, result.pop("run")


def kill_processes(monkeypatch, folder, times):
    """Make the block with image 008 kill the processes that decode it."""
    folder.mkdir()
    real = samples.EncodedImages

    def part(names, *arguments):
        images = real(names, *arguments)
        return EndsProcess(images, folder, times) if any("008" in name for name in names) else images

    monkeypatch.setattr(samples, "EncodedImages", part)


def test_any_number_of_processes_gives_the_same_results(images):
    expected, _ = run(images, 0)
    for processes in (1, 3):
        found, times = run(images, processes)
        assert found == expected and times["processes"] == processes
    assert not multiprocessing.active_children()


def test_the_block_of_a_killed_process_is_decoded_again_once(images, tmp_path, monkeypatch):
    expected, _ = run(images, 0)
    kill_processes(monkeypatch, tmp_path / "ended", times=1)
    found, times = run(images, 2)
    assert found == expected and times["repeated_blocks"] == 1


def test_a_block_that_ends_two_processes_is_refused(images, tmp_path, monkeypatch):
    kill_processes(monkeypatch, tmp_path / "ended", times=9)
    message = r"two processes ended while they decoded images class .*\.png to class"
    with pytest.raises(ConvswapError, match=message):
        run(images, 1)
    assert len(list((tmp_path / "ended").iterdir())) == 2
    assert not memory_files()


def test_an_error_of_the_caller_ends_processes_and_frees_memory(images):
    def fail(text):
        if text.startswith("evaluated"):
            raise KeyError(text)

    with pytest.raises(KeyError) as caught:
        evaluate.evaluate(classifier(), images, batch=4, device="cpu", processes=2, progress=fail)
    # The traceback refers to all that the evaluation has.
    assert caught.tb is not None and not memory_files() and not multiprocessing.active_children()


def test_an_image_that_cannot_be_read_is_named(images):
    (images / "class 4" / "029.png").write_bytes(b"no image")
    with pytest.raises(ConvswapError, match=r"cannot read the inputs '.*/class 4/029\.png'"):
        run(images, 2)
