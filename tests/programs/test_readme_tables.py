"""Tables of README.md and docs: benchmarks/results.py measures and benchmarks/readme_tables.py writes."""

from __future__ import annotations

import copy
import json

import pytest
from build_tools import REPOSITORY, run_script, script, write_results
from convswap.models import ALL_NETWORKS, LARGE_NETWORKS, NETWORKS

pytestmark = pytest.mark.extended

NETWORK = "ece408-2019sp"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of a small comparison of one network on the CPU."""
    file = tmp_path_factory.mktemp("found") / "h200.json"
    results = script("results").Results(file)
    command = f"convswap compare {NETWORK} --device cpu --images 30 --data synthetic"
    assert script("results").measure("compare/one", command, results, "abcdef01") == 0
    section = script("results").Results(file).sections["compare/one"]
    assert (section["command"], section["commit"]) == (command, "abcdef01")
    return section["found"]


@pytest.fixture
def results(found, tmp_path):
    """A file with the same results for each network; large networks have no accuracy, as on random data."""
    large = {"accuracy": {"default": None, "convswap": None}, "images": 256, "batch": 8}
    every = {
        f"compare/{name}": {**found, "model": name} | (large if name in LARGE_NETWORKS else {})
        for name in ALL_NETWORKS
    }
    return write_results(tmp_path / "h200.json", **every)


@pytest.fixture
def fused_results(results):
    """The same file with results of --fuse: half the time, 3 of 4 Convs fused."""
    taken = {"node": "conv1", "op": "FusedConv", "taken": [{"op": "Tanh", "node": "tanh1"}]}
    sections = json.loads(results.read_text())
    for name in ALL_NETWORKS:
        one = copy.deepcopy(sections[f"compare/{name}"]["found"])
        one["time_ms"]["convswap"]["median"] /= 2
        one["options"]["fuse"] = True
        one |= {"speedup": 2 * one["speedup"], "fused": [taken] * 3, "swapped": 4, "top1_agreement": 0.75}
        sections[f"compare-fused/{name}"] = sections[f"compare/{name}"] | {"found": one}
    results.write_text(json.dumps(sections))
    return results


@pytest.fixture
def page(tmp_path):
    """A function that fills a page with the markers of one table, and returns the text of the page."""
    file = tmp_path / "page.md"

    def write(name, results, status=0):
        place = f"Before.\n<!-- {name} -->\nold\n<!-- /{name} -->\nAfter.\n"
        file.write_text(place)
        for _ in range(2):  # the second time replaces the first table
            answer = run_script("readme_tables", "--results", results, "--readme", file)
            assert answer.returncode == status, answer.stderr
            if status:
                assert file.read_text() == place
                (line,) = answer.stderr.splitlines()
                return line
            assert answer.stdout == f"{file}: {name}\n"
        text = file.read_text()
        assert text.startswith(f"Before.\n<!-- {name} -->\n") and "old" not in text
        assert text.endswith(f"<!-- /{name} -->\nAfter.\n")
        return text

    return write


def rows_of(text):
    """Return the rows of the only table by heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    headings, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rule == ["---", *["---:"] * (len(headings) - 1)]
    return [dict(zip(headings, row, strict=True)) for row in rows]


def change(results, network, folder="compare", **changes):
    sections = json.loads(results.read_text())
    sections[f"{folder}/{network}"]["found"] |= changes
    results.write_text(json.dumps(sections))


def test_the_table_has_a_row_for_every_network_and_accuracies_if_they_are_known(found, results, page):
    text = page("all-networks", results)
    assert " ".join(text.splitlines()[-4:-2]) == (
        "To measure again: `python benchmarks/results.py 'compare/*'`. Results of one a card, driver 1.2: "
        "commit abcdef01 of 2026-11-29."
    )
    rows = rows_of(text)
    assert [row["network"] for row in rows] == [*NETWORKS, *LARGE_NETWORKS]
    default, ours = (found["time_ms"][side]["median"] for side in ("default", "convswap"))
    accuracies = [f"{found['accuracy'][side]:.4f}" for side in ("default", "convswap")]
    for row in rows:
        is_large = row["network"] in LARGE_NETWORKS
        assert row["images"] == ("256 by 8" if is_large else "30")
        expected = [row["accuracy default"], row["accuracy convswap"]]
        assert expected == (["—", "—"] if is_large else accuracies)
        assert float(row["top-1 agreement"]) == pytest.approx(found["top1_agreement"], abs=5e-5)
        # The table has two digits.
        error = found["relative_l2_error"]["convswap"]
        assert float(row["relative L2 error"]) == pytest.approx(error, rel=0.05)
        # The table has three digits.
        assert [float(row["default"]), float(row["convswap"])] == pytest.approx([default, ours], rel=5e-3)
        assert float(row["speedup"].removesuffix("x")) == pytest.approx(default / ours, rel=5e-3)


def test_a_network_without_results_is_no_row_and_named_below(results, page):
    sections = json.loads(results.read_text())
    del sections["compare/vgg16"]
    results.write_text(json.dumps(sections))
    text = page("all-networks", results)
    assert "vgg16" not in [row["network"] for row in rows_of(text)]
    assert len(rows_of(text)) == len(ALL_NETWORKS) - 1 and "\n\nNot compared yet: vgg16.\n" in text


def test_results_of_another_machine_or_precision_do_not_mix(found, results, page):
    environment = found["environment"] | {"onnxruntime": "1.99"}
    for changes, expected in [({"precision": "ieee"}, "ieee"), ({"environment": environment}, "1.99")]:
        change(results, NETWORK, **changes)
        line = page("all-networks", results, status=1)
        assert "are of different kinds" in line and expected in line
        change(results, NETWORK, **{name: found[name] for name in changes})


def test_wrong_outputs_get_no_row(results, page):
    change(results, "convnext-tiny", within_tolerance=False)
    assert page("all-networks", results, status=1).startswith("the outputs of convnext-tiny are wrong,")


def test_each_network_has_its_times_swapped_and_fused(found, fused_results, page):
    rows = rows_of(page("fused", fused_results))
    assert [row["network"] for row in rows] == [*NETWORKS, *LARGE_NETWORKS]
    default, ours = (found["time_ms"][side]["median"] for side in ("default", "convswap"))
    for row in rows:
        assert (row["Convs fused"], row["top-1 agreement fused"]) == ("3 of 4", "0.7500")
        times = [float(row[side]) for side in ("default", "swapped", "fused")]
        assert times == pytest.approx([default, ours, ours / 2], rel=5e-3)
        speedups = [float(row[f"speedup {side}"].removesuffix("x")) for side in ("swapped", "fused")]
        assert speedups == pytest.approx([found["speedup"], 2 * found["speedup"]], rel=5e-3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"folder": "compare-fused", "options": {"fuse": False}}, "are not fused"),
        ({"options": {"fuse": True}}, "are fused"),
        ({"folder": "compare-fused", "images": 7}, "fused and not, are of different data"),
        ({"folder": "compare-fused", "precision": "ieee"}, "are of different kinds"),
        ({"folder": "compare-fused", "within_tolerance": False}, "so their times mean nothing"),
    ],
    ids=str,
)
def test_results_of_different_kinds_are_no_row_of_the_fused(changes, expected, fused_results, page):
    change(fused_results, NETWORK, **changes)
    assert expected in page("fused", fused_results, status=1)


def bench_row(layer, batch=10_000, **times):
    return {"layer": layer, "batch": batch, "relative_l2_error": 1.25e-7, "floor_ms": 0.25, **times}


def test_small_batches_are_set_against_the_faster_of_default_and_heuristic(tmp_path, page):
    rows = [
        bench_row("a", 1, default_ms=4.0, others_ms={"heuristic": 5.0, "nhwc": 0.1}, convswap_ms=2.0),
        bench_row("a", 64, default_ms=9.0, others_ms={"heuristic": 6.0, "nhwc": 0.1}, convswap_ms=2.0),
        bench_row("b", 1, default_ms=4.0, others_ms={"heuristic": 8.0, "nhwc": 0.1}, convswap_ms=8.0),
        bench_row("b", 64, default_ms=3.0, others_ms={"heuristic": 3.0, "nhwc": 0.1}, convswap_ms=0.25),
    ]
    results_file = write_results(tmp_path / "h200.json", **{"bench-small": rows})
    assert rows_of(page("small-batches", results_file)) == [
        {"layer": "a", "batch 1": "2.00x", "batch 64": "3.00x"},
        {"layer": "b", "batch 1": "0.50x", "batch 64": "12.00x"},
        {"layer": "geometric mean", "batch 1": "1.00x", "batch 64": "6.00x"},
    ]


def test_ieee_is_set_against_the_default_without_tf32_and_float16_against_its_own(tmp_path, page):
    ieee = bench_row("a", default_ms=1.0, others_ms={"no_tf32": 6.0}, convswap_ms=2.0)
    half = bench_row("a", default_ms=5.0, best_other_ms=4.0, others_ms={}, convswap_ms=0.5)
    results_file = write_results(tmp_path / "h200.json", **{"bench-ieee": [ieee], "bench-float16": [half]})
    row = "| a | 6.00 | 2.00 | 3.0x | 1.2e-07 | 5.00 | 4.00 | 0.50 | 10.0x | 50 % |"
    assert row in page("precisions", results_file).splitlines()


def test_the_study_has_a_row_for_every_power_of_four_and_dashes_if_it_failed(tmp_path, page):
    parts = ("copy_in", "convolution", "fully_connected", "max_pool", "copy_out", "other", "total", "set_up")
    rows = [
        {"batch": batch, "side": side, **{f"{part}_ms": i * batch / 10 for i, part in enumerate(parts)}}
        for batch in (1, 2, 4)
        for side in ("default", "convswap")
    ]
    rows[-1] |= {f"{part}_ms": None for part in parts}
    results_file = write_results(tmp_path / "h200.json", **{"study-alexnet": {"rows": rows}})
    rows = [list(row.values()) for row in rows_of(page("study", results_file))]
    assert [row[:2] for row in rows] == [[b, s] for b in "14" for s in ("default", "convswap")]
    assert rows[2][2:6] == ["0", "0.400", "0.800", "1.20"] and rows[3][2:] == ["-"] * len(parts)


@pytest.mark.parametrize("name", ["small-batches", "study"])
def test_a_missing_section_is_named_with_the_command_that_measures_it(name, tmp_path, page):
    line = page(name, tmp_path / "none.json", status=1)
    assert line.startswith(f"{tmp_path}/none.json has no ") and "python benchmarks/results.py " in line


def test_command_that_fails_leaves_its_section_as_it_was(tmp_path):
    results_file = write_results(tmp_path / "h200.json", one=[1])
    before = results_file.read_text()
    module = script("results")
    assert module.measure("one", "convswap bench nothing", module.Results(results_file), "abcdef01") == 2
    assert results_file.read_text() == before


PAGES = {
    "README.md": "front",
    "docs/performance.md": "networks, all-networks, fused, one-image, real-models, small-batches, "
    "precisions, layers, other-layers",
    "docs/profiling.md": "study, against-ncu",
}


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_what_the_results_give(name, tmp_path):
    page = (REPOSITORY / name).read_text(encoding="utf-8")
    copy = tmp_path / "page.md"
    copy.write_text(page, encoding="utf-8")
    tables = PAGES[name].split(", ")
    answer = run_script("readme_tables", "--readme", copy)
    assert (answer.returncode, answer.stdout) == (0, f"{copy}: {', '.join(tables)}\n"), answer.stderr
    assert copy.read_text(encoding="utf-8") == page


def test_every_table_has_a_place_on_one_page():
    places = [name for tables in PAGES.values() for name in tables.split(", ")]
    assert sorted(places) == sorted(script("readme_tables").TABLES)
