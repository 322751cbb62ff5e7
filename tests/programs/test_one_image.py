"""benchmarks/one_image.py: the course's networks on one image, and the table of it."""

from __future__ import annotations

import json

import pytest
from build_tools import run_script, write_results

pytestmark = pytest.mark.extended

NETWORKS = ("ece408-2019sp", "ece408-2017-low")


def measured(file, device, networks, *more):
    options = ["--device", device, "--data", "synthetic", "--bursts", 2, "--runs", 2, *more]
    # Networks may stand on both sides of the options.
    answer = run_script("one_image", "--json", file, *networks[:1], *options, *networks[1:])
    assert answer.returncode == 0, answer.stderr
    return json.loads(file.read_text())


def test_every_network_has_a_time_for_each_side(tmp_path):
    found = measured(tmp_path / "new" / "one.json", "cpu", NETWORKS)
    assert (found["bursts"], found["runs"]) == (2, 2)
    assert [(row["network"], row["cuda_graph"]) for row in found["rows"]] == [(n, False) for n in NETWORKS]
    for row in found["rows"]:
        assert list(row["us"]) == list(row["relative_l2"]) == ["default", "swapped", "fused"]
        assert all(microseconds > 1 for microseconds in row["us"].values())
        assert row["relative_l2"]["default"] == 0
        assert all(error < 1e-5 for error in row["relative_l2"].values())


def test_the_table_has_a_row_for_each_network_and_one_for_all(tmp_path):
    rows = [
        {
            "network": network,
            "cuda_graph": graph,
            "us": {"default": 40.0 - 20 * graph, "swapped": 30.04 - 20 * graph, "fused": 20.5 - 10 * graph},
        }
        for network in NETWORKS
        for graph in (False, True)
    ]
    kept = write_results(tmp_path / "h200.json", **{"one-image": {"rows": rows}})
    page = tmp_path / "page.md"
    page.write_text("<!-- one-image -->\nold\n<!-- /one-image -->\n")
    answer = run_script("readme_tables", "--results", kept, "--readme", page)
    assert (answer.returncode, answer.stdout) == (0, f"{page}: one-image\n"), answer.stderr
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert table[0] == (
        "| network | default | swapped | fused | default in a graph | swapped in a graph | fused in a graph |"
    )
    one = "40.0 | 30.0 | 20.5 | 20.0 | 10.0 | 10.5 |"
    assert table[2:] == [
        f"| {NETWORKS[0]} | {one}",
        f"| {NETWORKS[1]} | {one}",
        "| together | 80.0 | 60.1 | 41.0 | 40.0 | 20.1 | 21.0 |",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ece408-2019"], "unknown network 'ece408-2019'; did you mean"),
        (["ece408-2019sp", "--runs", "0"], "--bursts and --runs must be at least 1"),
        (["ece408-2019sp", "--device", "gpu"], "unknown device 'gpu'"),
        (["ece408-2019sp", "--data", "mnist"], "unknown data set 'mnist'"),
    ],
)
def test_what_cannot_be_timed_is_told_in_a_line(tmp_path, arguments, told):
    answer = run_script("one_image", "--json", tmp_path / "one.json", *arguments)
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[-1].startswith(told)
    assert "Traceback" not in answer.stderr and not (tmp_path / "one.json").exists()


@pytest.mark.gpu
def test_on_a_card_each_network_runs_in_a_cuda_graph_too(tmp_path, cuda):
    found = measured(tmp_path / "one.json", cuda, NETWORKS[:1], "--runs", 5)
    assert [row["cuda_graph"] for row in found["rows"]] == [False, True]
    for row in found["rows"]:
        assert all(error < 1e-3 for error in row["relative_l2"].values())
        assert all(microseconds > 1 for microseconds in row["us"].values())
