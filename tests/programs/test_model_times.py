"""benchmarks/models.py: networks and models of a folder, by default, swapped, fused and optimised."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from build_tools import run_script, write_results
from comparisons import small_model
from convswap.reference.metrics import TOLERANCES

pytestmark = pytest.mark.extended

SIDES = ["default", "swapped", "fused"]
NETWORKS = ("ece408-2019sp", "ece408-2017-low")


@pytest.fixture
def folder(tmp_path):
    """Two samples each for a model of any batch and a model of batch 2."""
    models = tmp_path / "models"
    models.mkdir()
    for name, batch in (("any", "n"), ("two", 2)):
        onnx.save_model(small_model(batch=batch), models / f"{name}.onnx")
        x = np.random.default_rng(0).normal(size=(2, 3, 12, 12)).astype(np.float32)
        np.savez(models / f"{name}.npz", x=x)
    return models


def run_models(file, device, *options):
    result = run_script("models", "--json", file, "--device", device, *options)
    assert result.returncode == 0, result.stderr
    return json.loads(file.read_text())


@pytest.mark.slow
def test_every_network_has_a_row_for_one_image(tmp_path, device):
    # Networks may stand before and after the options.
    arguments = [NETWORKS[0], "--data", "synthetic", NETWORKS[1]]
    result = run_models(tmp_path / "new" / "one.json", device, *arguments)
    assert [(row["model"], row["batch"]) for row in result["rows"]] == [(name, 1) for name in NETWORKS]
    for row in result["rows"]:
        assert list(row["ms"]) == list(row["relative_l2"]) == SIDES
        assert list(row["graph_ms"]) == (SIDES if device == "cuda" else [])
        assert all(milliseconds > 1e-3 for milliseconds in (*row["ms"].values(), *row["graph_ms"].values()))
        assert row["relative_l2"]["default"] == 0
        assert all(error < (1e-5 if device == "cpu" else 2e-3) for error in row["relative_l2"].values())


@pytest.mark.slow
def test_every_model_has_a_row_for_each_batch_that_it_takes(folder, tmp_path, device):
    result = run_models(tmp_path / "new" / "real.json", device, "--models", folder, "--batches", "1,5")
    assert result["device"] == device and "onnxruntime" in result["environment"]
    # Batches larger than the samples repeat them; a fixed batch is the only row.
    assert [(row["model"], row["batch"]) for row in result["rows"]] == [("any", 1), ("any", 5), ("two", 2)]
    tolerance = TOLERANCES["ieee" if device == "cpu" else "tf32"]
    for row in result["rows"]:
        sides = SIDES + ["optimized"] * (row["taken"] > 0)
        assert list(row["ms"]) == list(row["relative_l2"]) == sides and row["convs"] == 2
        assert all(milliseconds > 0 for milliseconds in (*row["ms"].values(), *row["graph_ms"].values()))
        assert list(row["graph_ms"]) == (sides if device == "cuda" else [])
        assert all(error <= tolerance for error in row["relative_l2"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["other", "--models", "{folder}"],
            "there is no {folder}/other.onnx; `python tests/helpers/real_models.py {folder}` writes",
        ),
        (["--batches", "1,x"], "--batches '1,x': expected whole numbers with commas between, as in 1,8"),
        (["ece408-2019"], "unknown network 'ece408-2019'; did you mean"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["ece408-2019sp", "--data", "mnist"], "unknown data set 'mnist'"),
    ],
)
def test_what_cannot_be_timed_is_one_line(folder, tmp_path, arguments, message):
    file = tmp_path / "real.json"
    words = [argument.format(folder=folder) for argument in arguments]
    result = run_script("models", "--json", file, *words)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(message.format(folder=folder))
    assert "Traceback" not in result.stderr and not file.exists()


def test_the_table_has_dashes_where_the_model_stays_as_it_is(tmp_path):
    row = {"model": "a", "batch": 1, "convs": 4, "taken": 3}
    times = {"default": 3.0, "swapped": 2.5, "fused": 2.25}
    errors = {"default": 0.0, "swapped": 3e-4, "fused": 3e-4}
    rows = [
        {
            **row,
            "ms": times | {"optimized": 2.0},
            "graph_ms": times | {"default": 2.75, "optimized": 1.5},
            "relative_l2": errors | {"optimized": 2.5e-4},
        },
        {
            **row,
            "model": "b",
            "batch": 1024,
            "taken": 0,
            "ms": times,
            "graph_ms": {},
            "relative_l2": errors,
        },
    ]
    environment = {"card": "NVIDIA H200", "onnxruntime": "1.32.0"}
    result = {"environment": environment, "rows": rows}
    results_file = write_results(tmp_path / "h200.json", **{"real-models": result})
    page = tmp_path / "page.md"
    page.write_text("<!-- real-models -->\nold\n<!-- /real-models -->\n")
    process = run_script("readme_tables", "--results", results_file, "--readme", page)
    assert (process.returncode, process.stdout) == (0, f"{page}: real-models\n"), process.stderr
    assert "on one NVIDIA H200 with ONNX Runtime 1.32.0" in page.read_text()
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert table[2:] == [
        "| a | 1 | 3 of 4 | 3.00 | 2.50 | 2.25 | 2.00 | 2.75 | 1.50 | 1.50x | 2.5e-04 |",
        "| b | 1,024 | 0 of 4 | 3.00 | 2.50 | 2.25 | — | — | — | — | — |",
    ]


def test_the_table_of_networks_has_a_row_for_each_and_one_for_all(tmp_path):
    rows = [
        {
            "model": network,
            "ms": {"default": 0.04, "swapped": 0.03004, "fused": 0.0205},
            "graph_ms": {"default": 0.02, "swapped": 0.01004, "fused": 0.0105},
        }
        for network in NETWORKS
    ]
    results_file = write_results(tmp_path / "h200.json", **{"one-image": {"rows": rows}})
    page = tmp_path / "page.md"
    page.write_text("<!-- one-image -->\nold\n<!-- /one-image -->\n")
    result = run_script("readme_tables", "--results", results_file, "--readme", page)
    assert (result.returncode, result.stdout) == (0, f"{page}: one-image\n"), result.stderr
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert table[0] == (
        "| network | default | swapped | fused | default in a graph | swapped in a graph | fused in a graph |"
    )
    times = "40.0 | 30.0 | 20.5 | 20.0 | 10.0 | 10.5 |"
    assert table[2:] == [
        f"| {NETWORKS[0]} | {times}",
        f"| {NETWORKS[1]} | {times}",
        "| together | 80.0 | 60.1 | 41.0 | 40.0 | 20.1 | 21.0 |",
    ]
