"""The rungs' files as pages, and docs/tutorial/ladder.md, generated from the pages and measured results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from build_tools import REPOSITORY, write_results
from convswap.errors import ConvswapError
from convswap.models import NETWORKS
from convswap.tutorial.ladder.rung_texts import read_pages
from ladder_sources import PAGES, SOURCES

pytestmark = pytest.mark.extended

PAGE = """\
#pragma once

// Rung 1. The first
//
// Idea: One line
// and another.
//
// A second paragraph.
//
// Gain: Much.
//
// Counter: `dram__bytes.sum`, less.
//
// Reported: ece408-2017-high: 2.9 s; 0.4 s elsewhere. ece408-2019fa: 0.1 s
// + 0.3 s.

#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

__global__ void first(Convolution conv) {}

}  // namespace convswap::ladder
"""
# Results as `convswap ladder --json` writes them, without the fields that the page does not show.
RESULT = {
    "within_tolerance": True,
    "environment": {
        "card": "NVIDIA H200",
        "processor": "a processor",
        "driver": "580.1",
        "cuda": "13.0",
        "onnxruntime": "1.31.1",
        "convswap": "0.1.0",
    },
    "images": 10_000,
    "notes": ["the first ran once"],
}


@pytest.fixture
def rungs(tmp_path: Path) -> Path:
    """A folder of rungs, with one page."""
    folder = tmp_path / "cuda" / "tutorial" / "ladder"
    folder.mkdir(parents=True)
    (folder / "01_first.cuh").write_text(PAGE)
    (folder / "01_first.cc").write_text('#include "cuda/tutorial/ladder/01_first.cuh"\n')
    return tmp_path


def test_page_is_what_the_head_of_its_file_says(rungs):
    (page,) = read_pages(rungs)
    assert (page.number, page.name, page.device) == (1, "ladder_01_first", "cuda")
    assert (page.file, page.title) == ("cuda/tutorial/ladder/01_first.cuh", "The first")
    assert page.idea == "One line and another.\n\nA second paragraph."
    assert (page.gain, page.slower, page.counter) == ("Much.", "", "`dram__bytes.sum`, less.")
    assert page.reported == {"ece408-2017-high": "2.9 s; 0.4 s elsewhere", "ece408-2019fa": "0.1 s + 0.3 s"}
    assert (page.precision, page.fuses, page.code_location) == ("ieee", False, "")
    assert page.code == "__global__ void first(Convolution conv) {}\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("// Gain: Much.\n//\n", "", "lacks Gain: a page has Idea, Gain, Counter"),
        ("Rung 1.", "Rung 2.", "says that it is rung 2: expected 1, as it is named"),
    ],
)
def test_page_that_lacks_something_is_refused(rungs, old, new, message):
    file = rungs / "cuda" / "tutorial" / "ladder" / "01_first.cuh"
    file.write_text(PAGE.replace(old, new))
    with pytest.raises(ConvswapError, match=re.escape(message)):
        read_pages(rungs)


def test_package_has_the_pages_of_the_sources():
    assert read_pages() == PAGES


def test_every_page_is_complete():
    assert len(PAGES) == 16
    for page in PAGES:
        assert page.precision in ("ieee", "tf32")
        assert set(page.reported) <= set(NETWORKS)
        # GPU pages name a counter of Nsight Compute; the CPU page names another tool.
        assert page.device == "cpu" or re.search(r"`(\w+__\w+(\.\w+)*)`", page.counter)
        assert bool(page.code) != bool(page.code_location)
        assert not re.search(r"#include|namespace convswap", page.code)
        for field in (page.idea, page.gain, page.counter, *filter(None, [page.slower])):
            assert field.rstrip().endswith((".", ")")), (page.name, field[-40:])
    assert [page.name for page in PAGES if page.fuses] == ["ladder_16_fused"]


def generate(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the generator into `tmp_path`."""
    command = [sys.executable, REPOSITORY / "benchmarks" / "ladder_page.py"]
    command += ["--docs", tmp_path / "docs", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def test_the_page_is_what_the_generator_makes(tmp_path):
    result = generate(tmp_path)
    assert result.returncode == 0, result.stderr
    again = "python benchmarks/ladder_page.py"
    docs = REPOSITORY / "docs" / "tutorial"
    assert (tmp_path / "docs" / "ladder.md").read_text() == (docs / "ladder.md").read_text(), again
    assert (docs / "ladder.svg").exists() and "no figures yet" not in (docs / "ladder.md").read_text()


def results(file: Path, *names: str, **changes) -> Path:
    """Write results of all rungs for each network: 16 ms for the first, each next rung half as much."""
    rows = []
    for page in PAGES:
        op_ms = 16.0 / 2 ** (page.number - 1)
        kernel = {"name": "k", "registers": 40, "spilled_bytes": 0, "shared_bytes": 8136, "threads": 192}
        rows.append(
            {
                "number": page.number,
                "algorithm": page.name,
                "title": page.title,
                "device": page.device,
                "reported": page.reported.get("ece408-2017-high"),
                "why_not": None,
                "op_ms": op_ms,
                "speedup_before": None if page.number == 1 else 2.0,
                "speedup_first": None if page.number == 1 else 16.0 / op_ms,
                "speedup_first_on_card": None if page.number < 3 else 8.0 / op_ms,
                "replaced_ms": 1.5 if page.fuses else None,
                "floor_ms": None if page.device == "cpu" else 0.25,
                "percent_of_floor": None if page.device == "cpu" else 25.0 / op_ms,
                "gigabytes_per_second": 100.0 / op_ms,
                "relative_l2_error": 2e-7,
                "layers": [{"kernels": [] if page.device == "cpu" else [{**kernel, "blocks": 10_000}]}],
            }
            | changes.get(page.name, {})
        )
    report = {**RESULT, "rungs": rows} | changes.get("whole", {})
    return write_results(file, **{f"ladder/{name}": report | {"model": name} for name in names})


def test_page_has_every_measured_figure(tmp_path):
    changes = {"ladder_13_winograd": {"why_not": "it has points for others"}}
    folder = results(tmp_path / "results", "ece408-2017-high", "ece408-2020", **changes)
    result = generate(tmp_path, "--results", folder)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "docs" / "ladder.md").read_text()
    assert "10,000 images of ece408-2017-high on one NVIDIA H200, driver 580.1, CUDA 13.0" in page
    assert "The first ran once." in page and "no figures yet" not in page
    row = "| 3 | The sum in a register | 4.00 | 2.00x | 4.00x | 6.25 | 25.0 | 40 | 8.1 | 2.00e-07 |"
    assert row in page
    assert "**What it did gain.** 4.00 ms, 2.00 times as fast as the rung before. 6.25 % of the floor" in page
    assert (
        "`k`: 40 registers, none spilled, 8,136 bytes of shared memory, 10,000 blocks of 192 threads" in page
    )
    assert "It was left out: it has points for others." in page
    assert "with the ops that this one takes in (1.50 ms)" in page
    assert "| ece408-2020 | 16.0 | 8.00 | 4.00 |" in page
    assert (tmp_path / "docs" / "ladder.svg").read_text().count("The sum in a register") == 1


def test_rung_that_is_slower_than_the_one_before_says_why(tmp_path):
    folder = tmp_path / "results"
    results(folder, "ece408-2017-high", ladder_05_flat_blocks={"speedup_before": 0.5})
    assert generate(tmp_path, "--results", folder).returncode == 0
    page = (tmp_path / "docs" / "ladder.md").read_text()
    assert "slower than the rung before, by a factor of 2.00" in page
    assert page.count("**Why it is slower.** Here a division costs more than idle columns did") == 1
    results(folder, "ece408-2017-high", ladder_03_register_sum={"speedup_before": 0.5})
    result = generate(tmp_path, "--results", folder)
    assert result.returncode == 1
    assert (
        "rung 3 was slower than the one before, and cuda/tutorial/ladder/03_register_sum.cuh does not"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (
            ["ece408-2020"],
            {},
            "measure with: python benchmarks/results.py ladder/ece408-2017-high",
        ),
        (
            ["ece408-2017-high"],
            {"whole": {"within_tolerance": False}},
            "outputs of ece408-2017-high are wrong",
        ),
        (
            ["ece408-2017-high"],
            {"whole": {"rungs": []}},
            "is of other rungs; measure again: python benchmarks/results.py ladder/",
        ),
    ],
)
def test_results_that_say_nothing_get_no_page(tmp_path, names, changes, message):
    result = generate(tmp_path, "--results", results(tmp_path / "results", *names, **changes))
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert message in result.stderr
    assert not (tmp_path / "docs").exists()


def test_generated_page_follows_from_the_sources_of_this_checkout():
    page = (REPOSITORY / "docs" / "tutorial" / "ladder.md").read_text()
    for rung in PAGES:
        assert f"## Rung {rung.number}. {rung.title}\n\n{rung.idea}\n" in page
        assert (SOURCES / rung.file).exists()
