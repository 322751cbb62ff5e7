"""Measure the results behind the pages: a file for each card, with a section for each command.

    python benchmarks/results.py                                  # all sections of `make tables`; takes hours
    python benchmarks/results.py bench-course 'compare/*'         # some sections
    python benchmarks/results.py --file benchmarks/other-card.json

A section has the JSON output of its command ("found"), the command, the date, the card and the driver. It
also has the commit of the checkout, with a + if files differ from it. null is unknown. Sections older than
this file have the commit that added them, whose kernels may be newer, and today's command.

Each command runs in a separate process. A command that fails leaves its section unchanged; the others run,
and the exit status is not 0.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from convswap.models import ALL_NETWORKS, NETWORKS
from convswap.output.files import write_text

ROOT = Path(__file__).resolve().parents[1]
# Environment that all results of one table must share.
SAME = ("card", "driver", "cuda", "onnxruntime", "convswap")
H200 = ROOT / "benchmarks" / "h200.json"
# Options for large networks, which get random data; timing each of their Convs would take minutes.
_LARGE = "--images 64 --no-layers"
_COMPARE = {name: "--data fashion-mnist" if name in NETWORKS else _LARGE for name in ALL_NETWORKS}
_BATCHES = "--batch 1,8,64,512,4096,10000"
_BENCH = "convswap bench course --against all --device cuda"
_ALGORITHMS = f"convswap bench course --against algorithms {_BATCHES} --device cuda"
# Sections of `make tables`; each command also gets --json FILE.
SECTIONS = {
    **{
        f"compare/{name}": f"convswap compare {name} --device cuda --against all {own}"
        for name, own in _COMPARE.items()
    },
    **{
        f"compare-fused/{name}": f"convswap compare {name} --device cuda --against default {own} --fuse"
        for name, own in _COMPARE.items()
    },
    "one-image": "python benchmarks/models.py --device cuda",
    "real-models": "python benchmarks/models.py --models build/real-models/timed --device cuda",
    "bench-course": _BENCH,
    "bench-small": f"{_BENCH} --batch 1,8,64,512,4096",
    "bench-algorithms": _ALGORITHMS,
    "bench-algorithms-ieee": f"{_ALGORITHMS} --precision ieee",
    "bench-algorithms-float16": f"{_ALGORITHMS} --precision float16",
    "bench-ieee": f"{_BENCH} --precision ieee",
    "bench-float16": f"{_BENCH} --precision float16",
    **{f"bench-{suite}": f"convswap bench {suite}" for suite in ("many-channels", "one-d", "three-d")},
    "study-alexnet": "convswap study alexnet --runs 10 -o docs/tutorial/alexnet-study.png",
    **{f"ladder/{name}": f"convswap ladder {name}" for name in NETWORKS},
}
# Sections measured only by name: the comparison with Nsight Compute, and pairs of `separable`. The sections
# `planner-*`, against which tests check the planner, come from benchmarks/fit.py.
BY_NAME = {
    "profile-against-ncu": "python benchmarks/profile_against_ncu.py ece408-2019fa ece408-2018fa",
    "separable-pairs": "python benchmarks/kernels.py separable",
}


class Results:
    """The sections of a file, none if it does not exist; `used` names the sections that were read."""

    def __init__(self, file: Path = H200) -> None:
        self.file = file
        self.sections: dict[str, dict[str, Any]] = {}
        self.used: dict[str, None] = {}
        if file.exists():
            self.sections = json.loads(file.read_text(encoding="utf-8"))

    def __contains__(self, name: str) -> bool:
        """Whether the section exists."""
        return name in self.sections

    def __getitem__(self, name: str) -> Any:
        """Return the results of a section; end the program if it is missing."""
        self.require([name])
        self.used[name] = None
        return self.sections[name]["found"]

    def require(self, names: Iterable[str]) -> None:
        """End the program if a section is missing."""
        if missing := [name for name in names if name not in self.sections]:
            again = f"python benchmarks/results.py {' '.join(missing)}"
            raise SystemExit(f"{self.file} has no {', '.join(missing)}; measure with: {again}")

    def origin(self) -> str:
        """Return a line with the origin of the sections used since the last call."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name in self.used:
            section = self.sections[name]
            key = tuple(section.get(each) or "unknown" for each in ("card", "driver", "commit", "date"))
            groups.setdefault(key, []).append(name)
        self.used.clear()
        parts: dict[str, list[str]] = {}
        for (card, driver, commit, date), names in groups.items():
            lists_sections = len(groups) > 1 and len(names) < 5
            sections = f" ({', '.join(f'`{name}`' for name in names)})" if lists_sections else ""
            parts.setdefault(f"{card}, driver {driver}", []).append(f"commit {commit} of {date}{sections}")
        origins = (f"{where}: {', '.join(commits)}" for where, commits in parts.items())
        return f"Results of one {'; one '.join(origins)}."

    def put(self, name: str, command: str, found: Any, commit: str) -> None:
        """Set a section and write the file."""
        environment = found.get("environment", {}) if isinstance(found, dict) else {}
        card, driver = card_and_driver()
        self.sections[name] = {
            "commit": commit,
            "date": datetime.date.today().isoformat(),
            "card": environment.get("card") or card,
            "driver": environment.get("driver") or driver,
            "command": command,
            "found": found,
        }
        write_text(self.file, file_text(self.sections))


def check_same_kind(found: Iterable[Mapping[str, Any]], sections: str) -> None:
    """End the program unless all results have the same machine, software and precision."""
    kinds = {(each.get("precision", ""), *(each["environment"][name] for name in SAME)) for each in found}
    if len(kinds) > 1:
        listed = "; ".join(sorted(", ".join(map(str, kind)) for kind in kinds))
        raise SystemExit(f"the results in {sections} are of different kinds: {listed}")


def file_text(sections: Mapping[str, Any]) -> str:
    """Return sections as JSON, with a line for each row of a list and each value of the outer objects.

    Numbers have six significant digits, more than any measurement.
    """
    return _lines(_rounded(dict(sections)), "") + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _lines(value: Any, indent: str) -> str:
    # Levels: the file, its sections, and their values.
    if isinstance(value, dict) and len(indent) < 3:
        rows = [f"{json.dumps(key)}: {_lines(each, indent + ' ')}" for key, each in value.items()]
        return "{\n" + ",\n".join(f"{indent} {row}" for row in rows) + f"\n{indent}}}"
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(f"{indent} {_line(row)}" for row in value) + f"\n{indent}]"
    return _line(value)


def card_and_driver() -> tuple[str | None, str | None]:
    """Return the name of the first card and the version of its driver; None without a card."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None, None
    card, _, driver = output.partition(", ")
    return card, driver


def checked_out() -> str:
    """Return the commit of this checkout, with a + if files differ from it."""
    try:
        outputs = [
            subprocess.run(
                ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in (
                ("rev-parse", "--short=8", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no"),
            )
        ]
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"{ROOT} is no git checkout that git can read: each section names its commit; measure in a clone"
        ) from error
    # Changed results do not count.
    changed = [line for line in outputs[1].splitlines() if not line.endswith(".json")]
    return outputs[0] + ("+" if changed else "")


def measure(name: str, command: str, results: Results, commit: str) -> int:
    """Run a section's command and store its results; return the exit status."""
    program, *arguments = shlex.split(command)
    start = ["-m", "convswap.cli"] if program == "convswap" else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        arguments_of_process = [sys.executable, *start, *arguments, "--json", str(file)]
        status = subprocess.run(arguments_of_process, cwd=ROOT, check=False).returncode
        if status == 0:
            results.put(name, command, json.loads(file.read_text(encoding="utf-8")), commit)
    return status


def main() -> int:
    """Measure the sections of the command line; return the largest exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="SECTION", help="name or pattern; default: all sections of the pages"
    )
    parser.add_argument("--file", type=Path, default=H200, help="default: benchmarks/h200.json")
    options = parser.parse_args()
    known = SECTIONS | BY_NAME
    patterns = options.names or list(SECTIONS)
    if unknown := [each for each in patterns if not fnmatch.filter(known, each)]:
        parser.error(f"no section is called {', '.join(unknown)}; there are: {', '.join(known)}")
    names = [name for name in known if any(fnmatch.fnmatchcase(name, each) for each in patterns)]
    results, commit, statuses = Results(options.file), checked_out(), {}
    for number, name in enumerate(names, start=1):
        print(f"{name}, {number} of {len(names)}", file=sys.stderr, flush=True)
        statuses[name] = measure(name, known[name], results, commit)
    for name, status in statuses.items():
        if status:
            print(f"{name}: not measured, status {status}; its section is unchanged", file=sys.stderr)
    return max(statuses.values(), key=abs)


if __name__ == "__main__":
    sys.exit(main())
