"""Links of README and docs/ lead somewhere, and the command line accepts their commands."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from build_tools import REPOSITORY
from convswap.cli.main import parser_of_all

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the kind and the text of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Return the lines in blocks of code that run convswap, without comments."""
    lines = [line for kind, text in blocks(page) if kind in ("", "sh") for line in text.splitlines()]
    commands_only = [line.split(" #")[0].strip() for line in lines]
    return [
        line.removeprefix(".venv/bin/")
        for line in commands_only
        if re.match(r"(\.venv/bin/)?convswap ", line)
    ]


def test_the_first_page_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150


@every_page
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


@every_page
def test_commands_are_understood(page):
    for command in commands(page):
        parser_of_all().parse_args(shlex.split(command)[1:])


def test_commands_are_found_on_the_pages():
    command_lines = [command for page in PAGES for command in commands(page)]
    used = {command.split()[1] for command in command_lines}
    assert {"compare", "swap", "bench", "explain", "tune", "warm", "export", "train", "profile"} <= used


@every_page
def test_blocks_of_python_are_python(page):
    for kind, text in blocks(page):
        if kind == "python":
            ast.parse(text)


def test_every_page_of_docs_is_linked_from_the_first():
    first = (REPOSITORY / "README.md").read_text()
    assert [
        page.name
        for page in PAGES
        if page.parent != REPOSITORY and str(page.relative_to(REPOSITORY)) not in first
    ] == []


# Runs the page's algorithm on a problem of two groups, and prints its largest difference from plain loops.
EXAMPLE_MAIN = """
#include <cmath>
#include <cstdio>
#include <vector>

#include "plan/algorithm.h"

namespace convswap { const Algorithm& cpu_pixel_rows(); }

int main() {
  using namespace convswap;
  ConvProblem problem;
  problem.batch = 2, problem.in_channels = 6, problem.out_channels = 4, problem.group = 2;
  problem.input = problem.output = problem.result = {1, 5, 7};
  std::vector<float> x(2 * 6 * 35), w(4 * 3), b(4), y(2 * 4 * 35);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 11) - 5;
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 7) - 3;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
  Execution execution;
  execution.parallel_for = [](std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body) {
    for (std::ptrdiff_t task = 0; task < tasks; ++task) body(task);
  };
  const Offer offer = cpu_pixel_rows().offer(problem, Device{});
  offer.make()->run({x.data(), w.data(), b.data(), y.data(), nullptr}, execution);
  double most = 0;
  for (int n = 0; n < 2; ++n) for (int k = 0; k < 4; ++k) for (int i = 0; i < 35; ++i) {
    double sum = b[k];
    for (int c = 0; c < 3; ++c) sum += w[k * 3 + c] * x[(n * 6 + k / 2 * 3 + c) * 35 + i];
    most = std::fmax(most, std::fabs(sum - y[(n * 4 + k) * 35 + i]));
  }
  problem.filter = {1, 3, 3};
  std::printf("%g; %s", most, cpu_pixel_rows().offer(problem, Device{}).why_not.c_str());
}
"""


@pytest.mark.slow
def test_the_algorithm_of_the_page_computes_convolutions(tmp_path):
    (example,) = [text for kind, text in blocks(REPOSITORY / "docs/add-an-algorithm.md") if kind == "cpp"]
    assert len(example.splitlines()) < 100
    (tmp_path / "pixel_rows.cc").write_text(example)
    (tmp_path / "main.cc").write_text(EXAMPLE_MAIN)
    include = f"-I{REPOSITORY / 'custom_op'}"
    command = ["g++", "-std=c++20", "-Wall", "-Werror", include, "-o", "example", "pixel_rows.cc", "main.cc"]
    built = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert built.returncode == 0, built.stderr
    result = subprocess.run([tmp_path / "example"], capture_output=True, text=True, check=True)
    assert result.stdout == "0; it computes only filters of one tap"
