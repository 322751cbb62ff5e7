"""`--ray` computes what one process computes, also if a process ends, and refuses a cluster without cards."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from build_tools import environment_with_helpers
from command_line import refusal
from convswap.errors import ConvswapError
from convswap.evaluation import evaluate, on_cluster
from image_data import EndsWorker, classifier
from test_evaluate_processes import images, kill_processes

__all__ = ["images"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extended,
    # Not imported here: Ray reads its settings at its import.
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"),
]

CLUSTER = """
import ray
print(ray.init(address="local", include_dashboard=False, num_cpus=2, num_gpus=0).address_info["gcs_address"])
input("")
"""


@pytest.fixture(scope="module")
def address():
    """Return the address of a cluster of this machine without cards."""
    command = [sys.executable, "-c", CLUSTER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment_with_helpers(), **pipes) as cluster:
        yield cluster.stdout.readline().strip()
        cluster.communicate("\n")


def run(images, **options):
    evaluation = evaluate.evaluate(classifier(), images, batch=4, device="cpu", **options)
    result = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    return result, result.pop("run")


def test_a_cluster_gives_the_results_of_one_process_and_goes_on_with_kept_ones(
    images, address, tmp_path, monkeypatch, capfd
):
    def interrupt(text):
        if text.startswith("evaluated"):
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    expected, _ = run("images", processes=0)
    with pytest.raises(KeyboardInterrupt):
        run("images", ray=address, resume="kept", progress=interrupt)
    found, times = run("images", ray=address, resume="kept")
    assert found == expected and times["kept_blocks"] == 1 and times["images"] == 22
    assert (times["processes"], times["cards"]) == (2, 1)
    assert capfd.readouterr() == ("", "")


def test_the_blocks_of_killed_processes_are_done_again_once(images, address, tmp_path, monkeypatch, capfd):
    expected, _ = run(images, processes=0)
    (tmp_path / "workers").mkdir()
    kill_processes(monkeypatch, tmp_path / "decoders", times=1)
    monkeypatch.setattr(on_cluster, "_compute", EndsWorker(on_cluster._compute, tmp_path / "workers"))
    found, times = run(images, ray=address)
    assert found == expected and times["repeated_blocks"] >= 2
    assert all(len(list((tmp_path / name).iterdir())) == 1 for name in ("decoders", "workers"))
    assert capfd.readouterr() == ("", "")


def test_a_block_that_ends_every_process_is_refused(images, address, tmp_path, monkeypatch):
    monkeypatch.setattr(on_cluster, "_MAX_REPEATS", 1)
    kill_processes(monkeypatch, tmp_path / "ended", times=9)
    with pytest.raises(ConvswapError, match=r"2 processes of the Ray cluster ended with images .*\.png to"):
        run(images, ray=address)
    assert len(list((tmp_path / "ended").iterdir())) == 2


@pytest.mark.parametrize(
    "command",
    [
        "calibrate",
        "optimize ece408-2019fa -o m.onnx",
        "evaluate ece408-2019fa --data synthetic --device cuda",
    ],
)
def test_a_cluster_without_cards_is_refused_in_one_line(command, address, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "the Ray cluster has no free card" in refusal(capsys, *command.split(), "--ray", address)
