"""The tables of README.md: one command compares all networks, another one writes what it found."""

from __future__ import annotations

import copy
import json

import pytest
from build_tools import REPOSITORY, run_script, script, write_results
from convswap.models import ALL_NETWORKS, LARGE_NETWORKS, NETWORKS

pytestmark = pytest.mark.extended

NETWORK = "ece408-2019sp"
PLACE = "Before.\n<!-- all-networks -->\nold\n<!-- /all-networks -->\nAfter.\n"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a small comparison of one network finds, on the CPU."""
    file = tmp_path_factory.mktemp("found") / "h200.json"
    results = script("results").Results(file)
    command = f"convswap compare {NETWORK} --device cpu --images 30 --data synthetic"
    assert script("results").measure("compare/one", command, results, "abcdef01") == 0
    section = script("results").Results(file).sections["compare/one"]
    assert (section["command"], section["commit"]) == (command, "abcdef01")
    return section["found"]


@pytest.fixture
def results(found, tmp_path):
    """A file of results: of each network the same, and of the large ones no accuracy, as on random data."""
    large = {"accuracy": {"default": None, "convswap": None}, "images": 256, "batch": 8}
    every = {
        f"compare/{name}": {**found, "model": name} | (large if name in LARGE_NETWORKS else {})
        for name in ALL_NETWORKS
    }
    return write_results(tmp_path / "h200.json", **every)


@pytest.fixture
def fused_results(results):
    """The same with results of --fuse beside the others: in half the time, 3 Convs of 4 fused."""
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
def readme(tmp_path):
    file = tmp_path / "page.md"
    file.write_text(PLACE)
    return file


def change(results, network, folder="compare", **changes):
    sections = json.loads(results.read_text())
    sections[f"{folder}/{network}"]["found"] |= changes
    results.write_text(json.dumps(sections))


def test_the_table_has_a_row_for_every_network_and_accuracies_where_they_are_known(found, results, readme):
    answer = run_script("readme_tables", "--results", results, "--readme", readme)
    assert (answer.returncode, answer.stdout) == (0, f"{readme}: all-networks\n"), answer.stderr
    before, begin, heading, rule, *rows, _, first, second, end, after = readme.read_text().splitlines()
    assert (before, begin, end, after) == (
        "Before.",
        "<!-- all-networks -->",
        "<!-- /all-networks -->",
        "After.",
    )
    assert f"{first} {second}" == (
        "To measure again: `python benchmarks/results.py 'compare/*'`. Results of one a card, driver 1.2: "
        "commit abcdef01 of 2026-11-29."
    )
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (heading, *rows)]
    assert {len(row) for row in cells} == {rule.count("---")} == {9}
    assert [row[0] for row in cells[1:]] == [*NETWORKS, *LARGE_NETWORKS]
    times = [found["time_ms"][side]["median"] for side in ("default", "convswap")]
    for row in cells[1:]:
        named = dict(zip(cells[0], row, strict=True))
        if row[0] in NETWORKS:
            assert named["images"] == "30"
            assert float(named["accuracy default"]) == pytest.approx(found["accuracy"]["default"], abs=5e-5)
            assert float(named["accuracy convswap"]) == pytest.approx(found["accuracy"]["convswap"], abs=5e-5)
        else:
            assert named["images"] == "256 by 8"
            assert (named["accuracy default"], named["accuracy convswap"]) == ("—", "—")
        assert float(named["top-1 agreement"]) == pytest.approx(found["top1_agreement"], abs=5e-5)
        # Two digits count.
        assert float(named["relative L2 error"]) == pytest.approx(
            found["relative_l2_error"]["convswap"], rel=0.05
        )
        # Three do.
        assert [float(named["default"]), float(named["convswap"])] == pytest.approx(times, rel=5e-3)
        assert float(named["speedup"].removesuffix("x")) == pytest.approx(times[0] / times[1], rel=5e-3)


def test_a_network_without_results_is_no_row_and_named_below(results, readme):
    sections = json.loads(results.read_text())
    del sections["compare/vgg16"]
    results.write_text(json.dumps(sections))
    answer = run_script("readme_tables", "--results", results, "--readme", readme)
    assert (answer.returncode, answer.stdout) == (0, f"{readme}: all-networks\n"), answer.stderr
    page = readme.read_text()
    assert "| vgg16 |" not in page and page.count("\n| ") == len(ALL_NETWORKS) + 1
    assert "\n\nNot compared yet: vgg16.\n" in page


def test_results_of_another_machine_or_precision_do_not_mix(found, results, readme):
    environment = found["environment"] | {"onnxruntime": "1.99"}
    for changes, told in [({"precision": "ieee"}, "ieee"), ({"environment": environment}, "1.99")]:
        change(results, NETWORK, **changes)
        answer = run_script("readme_tables", "--results", results, "--readme", readme)
        assert answer.returncode == 1
        (line,) = answer.stderr.splitlines()
        assert "are of different kinds" in line and told in line
        change(results, NETWORK, **{name: found[name] for name in changes})
    assert readme.read_text() == PLACE


def test_wrong_answers_get_no_row(results, readme):
    change(results, "convnext-tiny", within_tolerance=False)
    answer = run_script("readme_tables", "--results", results, "--readme", readme)
    assert answer.returncode == 1
    assert answer.stderr.startswith("the answers of convnext-tiny differ;")
    assert readme.read_text() == PLACE


def test_each_network_has_its_times_swapped_and_fused(found, fused_results, readme):
    readme.write_text("<!-- fused -->\nold\n<!-- /fused -->\n")
    for _ in range(2):  # the second time in the place of the first
        answer = run_script("readme_tables", "--results", fused_results, "--readme", readme)
        assert (answer.returncode, answer.stdout) == (0, f"{readme}: fused\n"), answer.stderr
        lines = readme.read_text().splitlines()
        assert (lines[0], lines[-1]) == ("<!-- fused -->", "<!-- /fused -->") and "old" not in lines
        heading, rule, *rows = [line for line in lines if line.startswith("|")]
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (heading, *rows)]
        assert {len(row) for row in cells} == {rule.count("---")} == {9}
        assert [row[0] for row in cells[1:]] == [*NETWORKS, *LARGE_NETWORKS]
    times = {side: found["time_ms"][side]["median"] for side in ("default", "convswap")}
    for row in cells[1:]:
        named = dict(zip(cells[0], row, strict=True))
        assert (named["Convs fused"], named["top-1 agreement fused"]) == ("3 of 4", "0.7500")
        assert float(named["default"]) == pytest.approx(times["default"], rel=5e-3)
        assert float(named["swapped"]) == pytest.approx(times["convswap"], rel=5e-3)
        assert float(named["fused"]) == pytest.approx(times["convswap"] / 2, rel=5e-3)
        speedups = [float(named[f"speedup {what}"].removesuffix("x")) for what in ("swapped", "fused")]
        assert speedups == pytest.approx([found["speedup"], 2 * found["speedup"]], rel=5e-3)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"folder": "compare-fused", "options": {"fuse": False}}, "are not fused"),
        ({"options": {"fuse": True}}, "are fused"),
        ({"folder": "compare-fused", "images": 7}, "fused and not, are of different data"),
        ({"folder": "compare-fused", "precision": "ieee"}, "are of different kinds"),
        ({"folder": "compare-fused", "within_tolerance": False}, "a time for a wrong answer says nothing"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_no_row_of_the_fused(changes, told, fused_results, readme):
    readme.write_text("<!-- fused -->\n<!-- /fused -->\n")
    change(fused_results, NETWORK, **changes)
    answer = run_script("readme_tables", "--results", fused_results, "--readme", readme)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert told in line


def bench_row(layer, batch=10_000, **times):
    return {"layer": layer, "batch": batch, "relative_l2_error": 1.25e-7, "floor_ms": 0.25, **times}


def cells_of(readme):
    """Return the rows of the only table, without the rule below its headings."""
    lines = [line for line in readme.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in rows} == {len(rows[0])}
    return [rows[0], *rows[2:]]


def test_small_batches_are_set_against_the_faster_of_default_and_heuristic(tmp_path, readme):
    rows = [
        bench_row("a", 1, default_ms=4.0, others_ms={"heuristic": 5.0, "nhwc": 0.1}, convswap_ms=2.0),
        bench_row("a", 64, default_ms=9.0, others_ms={"heuristic": 6.0, "nhwc": 0.1}, convswap_ms=2.0),
        bench_row("b", 1, default_ms=4.0, others_ms={"heuristic": 8.0, "nhwc": 0.1}, convswap_ms=8.0),
        bench_row("b", 64, default_ms=3.0, others_ms={"heuristic": 3.0, "nhwc": 0.1}, convswap_ms=0.25),
    ]
    kept = write_results(tmp_path / "h200.json", **{"bench-small": rows})
    readme.write_text("<!-- small-batches -->\n<!-- /small-batches -->\n")
    answer = run_script("readme_tables", "--results", kept, "--readme", readme)
    assert answer.returncode == 0, answer.stderr
    assert cells_of(readme) == [
        ["layer", "batch 1", "batch 64"],
        ["a", "2.00x", "3.00x"],
        ["b", "0.50x", "12.00x"],
        ["geometric mean", "1.00x", "6.00x"],
    ]


def test_ieee_is_set_against_the_default_without_tf32_and_float16_against_its_own(tmp_path, readme):
    ieee = bench_row("a", default_ms=1.0, others_ms={"no_tf32": 6.0}, convswap_ms=2.0)
    half = bench_row("a", default_ms=5.0, best_other_ms=4.0, others_ms={}, convswap_ms=0.5)
    kept = write_results(tmp_path / "h200.json", **{"bench-ieee": [ieee], "bench-float16": [half]})
    readme.write_text("<!-- precisions -->\n<!-- /precisions -->\n")
    answer = run_script("readme_tables", "--results", kept, "--readme", readme)
    assert answer.returncode == 0, answer.stderr
    (row,) = cells_of(readme)[1:]
    assert row == ["a", "6.00", "2.00", "3.0x", "1.2e-07", "5.00", "4.00", "0.50", "10.0x", "50 %"]


def test_the_study_has_a_row_for_every_power_of_four_and_dashes_where_it_failed(tmp_path, readme):
    parts = ("copy_in", "convolution", "fully_connected", "max_pool", "copy_out", "other", "total", "set_up")
    rows = [
        {"batch": batch, "side": side, **{f"{part}_ms": i * batch / 10 for i, part in enumerate(parts)}}
        for batch in (1, 2, 4)
        for side in ("default", "convswap")
    ]
    rows[-1] |= {f"{part}_ms": None for part in parts}
    kept = write_results(tmp_path / "h200.json", **{"study-alexnet": {"rows": rows}})
    readme.write_text("<!-- study -->\n<!-- /study -->\n")
    answer = run_script("readme_tables", "--results", kept, "--readme", readme)
    assert answer.returncode == 0, answer.stderr
    headings, *rows = cells_of(readme)
    assert headings == ["batch", "side", *(part.replace("_", " ") for part in parts)]
    assert [row[:2] for row in rows] == [[b, s] for b in "14" for s in ("default", "convswap")]
    assert rows[2][2:6] == ["0", "0.400", "0.800", "1.20"] and rows[3][2:] == ["-"] * len(parts)


@pytest.mark.parametrize("name", ["small-batches", "study"])
def test_a_missing_section_is_named_with_what_measures_it(name, tmp_path, readme):
    readme.write_text(f"<!-- {name} -->\n<!-- /{name} -->\n")
    answer = run_script("readme_tables", "--results", tmp_path / "none.json", "--readme", readme)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith(f"{tmp_path}/none.json has no ") and "python benchmarks/results.py " in line


def test_command_that_fails_leaves_its_section_as_it_was(tmp_path):
    kept = write_results(tmp_path / "h200.json", one=[1])
    before = kept.read_text()
    own = script("results")
    assert own.measure("one", "convswap bench nothing", own.Results(kept), "abcdef01") == 2
    assert kept.read_text() == before


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
