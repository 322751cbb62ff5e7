"""Write docs/tutorial/ladder.md and its plot from the rungs' files and the results.

`python benchmarks/results.py 'ladder/*'` measures the results. `python benchmarks/ladder_page.py` reads the
texts from custom_op, so that the page agrees with the files. All figures are results of ece408-2017-high;
results of the other networks are in a table at the end. Without results the page has texts only.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError
from convswap.models import NETWORKS
from convswap.output.tables import error, three_digits
from convswap.tutorial.ladder.report import ladder_svg
from convswap.tutorial.ladder.rung_texts import Page, read_pages
from results import H200, Results, check_same_kind

HERE = Path(__file__).parent
NETWORK = "ece408-2017-high"
SAME = 1.005  # times as fast that are no difference
UNMEASURED = """\
These pages have no figures yet. `make tables` makes them, and says with them
why a rung is slower than the one before, where one is.
"""


def main() -> None:
    """Write the page and the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=H200, metavar="FILE")
    parser.add_argument(
        "--docs", type=Path, default=HERE.parent / "docs" / "tutorial", help="default: docs/tutorial"
    )
    options = parser.parse_args()
    try:
        pages = read_pages(HERE.parent / "custom_op")
    except ConvswapError as problem:
        raise SystemExit(str(problem)) from problem
    results_by_network = results(Results(options.results), pages)
    options.docs.mkdir(parents=True, exist_ok=True)
    written = [options.docs / "ladder.md"]
    written[0].write_text(page_text(pages, results_by_network), encoding="utf-8")
    if NETWORK in results_by_network:
        written.append(options.docs / "ladder.svg")
        written[-1].write_text(ladder_svg(results_by_network[NETWORK]), encoding="utf-8")
    print(", ".join(map(str, written)))


def results(results_file: Results, pages: Sequence[Page]) -> dict[str, dict[str, Any]]:
    """Return the results of `convswap ladder` by network.

    Ends the program if outputs were wrong, or if results have different kinds or other rungs.
    """
    by_network = {
        name: results_file[f"ladder/{name}"] for name in NETWORKS if f"ladder/{name}" in results_file
    }
    for name, result in by_network.items():
        if not result["within_tolerance"]:
            raise SystemExit(f"outputs of {name} are wrong, so their times mean nothing")
        if [rung["algorithm"] for rung in result["rungs"]] != [page.name for page in pages]:
            again = f"python benchmarks/results.py ladder/{name}"
            raise SystemExit(f"ladder/{name} is of other rungs; measure again: {again}")
    check_same_kind(by_network.values(), "ladder")
    if by_network:
        results_file.require([f"ladder/{NETWORK}"])
    return by_network


def page_text(pages: Sequence[Page], results_by_network: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/tutorial/ladder.md."""
    source = (HERE.parent / "custom_op" / "cpu" / "tutorial" / "ladder" / "convolution.h").read_text(
        encoding="utf-8"
    )
    definition = re.search(r"^struct Convolution \{.*?^\};\n", source, re.DOTALL | re.MULTILINE)
    formula = re.search(r"^//   (y\[n\].*)$", source, re.MULTILINE)
    assert definition is not None and formula is not None
    introduction = (HERE / "ladder_introduction.md").read_text(encoding="utf-8")
    introduction = introduction.format(
        count=len(pages), network=NETWORK, definition=f"// {formula[1]}\n\n{definition[0]}"
    )
    main_result = results_by_network.get(NETWORK)
    parts = [
        "<!-- Written by benchmarks/ladder_page.py; change the files of custom_op/*/tutorial/ladder instead. "
        "-->\n",
        introduction,
    ]
    if main_result is None:
        parts.append(UNMEASURED)
    else:
        parts += [
            f"![The time of every rung](ladder.svg)\n\n{measured_on(main_result)}\n",
            times(main_result),
        ]
    for page in pages:
        rung = None if main_result is None else main_result["rungs"][page.number - 1]
        parts.append(rung_text(page, rung))
    if len(results_by_network) > 1:
        parts.append(all_networks(results_by_network))
    return "\n".join(parts)


def measured_on(result: Mapping[str, Any]) -> str:
    """Return a text on where and how the figures were measured."""
    environment = result["environment"]
    notes = " ".join(f"{note[0].upper()}{note[1:]}." for note in result["notes"])
    return (
        f"{result['images']:,} images of {result['model']} on one {environment['card']}, "
        f"driver {environment['driver']}, CUDA {environment['cuda']}, "
        f"ONNX Runtime {environment['onnxruntime']}; the rungs on the processor on "
        f"{environment['processor']}. {notes}"
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ()) -> str:
    """Return a Markdown table; the first column and columns in `words` align left, others right."""
    rule = ["---" if name in (headings[0], *words) else "---:" for name in headings]
    lines = [headings, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def times(result: Mapping[str, Any]) -> str:
    """Return the table of all rungs."""
    headings = [
        "rung",
        "step",
        "op ms",
        "than before",
        "than first",
        "% of floor",
        "GB/s",
        "registers",
        "shared KB",
    ]
    return table(
        [*headings, "error", "the report, on its card"],
        (times_row(rung) for rung in result["rungs"]),
        words=["step", "the report, on its card"],
    )


def times_row(rung: Mapping[str, Any]) -> list[str]:
    """Return the cells of a rung."""
    first = [str(rung["number"]), rung["title"]]
    last = rung["reported"] or "—"
    if rung["why_not"] is not None:
        return [*first, *["—"] * 8, last]
    return [
        *first,
        three_digits(rung["op_ms"]),
        ratio(rung["speedup_before"]),
        ratio(rung["speedup_first"]),
        dash(rung["percent_of_floor"]),
        three_digits(rung["gigabytes_per_second"]),
        of_kernels(rung, "registers", str),
        of_kernels(rung, "shared_bytes", lambda size: f"{size / 1e3:.1f}"),
        error(rung["relative_l2_error"]),
        last,
    ]


def ratio(value: float | None) -> str:
    """Return 3.21x, or a dash."""
    return "—" if value is None else f"{three_digits(value)}x"


def dash(value: float | None) -> str:
    """Return a number with three digits, or a dash."""
    return "—" if value is None else three_digits(value)


def of_kernels(rung: Mapping[str, Any], key: str, text: Any) -> str:
    """Return the largest figure of each layer's kernels, joined by slashes, or a dash."""
    cells = [
        text(max(kernel[key] for kernel in layer["kernels"])) if layer["kernels"] else "—"
        for layer in rung["layers"]
    ]
    return "—" if set(cells) == {"—"} else "/".join(cells)


def rung_text(page: Page, rung: Mapping[str, Any] | None) -> str:
    """Return the section of a rung: idea, code, expected gain, measured gain, and profiler counter."""
    language = "c" if page.device == "cpu" else "cuda"
    code = f"```{language}\n{page.code}```" if page.code else f"The code is in {page.code_location}."
    parts = [
        f"## Rung {page.number}. {page.title}",
        page.idea,
        f"`custom_op/{page.file}`, the algorithm `{page.name}`:" if page.code else "",
        code,
        f"**What it should gain.** {page.gain}",
        *(gained(page, rung) if rung is not None else ()),
        f"**In Nsight Compute.** {page.counter}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def gained(page: Page, rung: Mapping[str, Any]) -> Iterator[str]:
    """Yield the measured gain of a rung, and the reason if the rung is slower than the rung before."""
    if rung["why_not"] is not None:
        yield f"**What it did gain.** It was left out: {rung['why_not']}."
        return
    sentences = [f"{three_digits(rung['op_ms'])} ms"]
    before = rung["speedup_before"]
    is_slower = before is not None and before < 1 / SAME
    if before is not None:
        if is_slower:
            sentences[0] += f", slower than the rung before, by a factor of {three_digits(1 / before)}"
        else:
            faster = "" if before < SAME else f"{three_digits(before)} times "
            sentences[0] += f", {faster}as fast as the rung before"
        if rung["replaced_ms"] is not None:
            sentences[0] += f" with the ops that this one takes in ({three_digits(rung['replaced_ms'])} ms)"
    if rung["percent_of_floor"] is not None:
        sentences.append(
            f"{three_digits(rung['percent_of_floor'])} % of the floor, "
            f"{three_digits(rung['gigabytes_per_second'])} GB/s"
        )
    for kernel in (kernel for layer in rung["layers"] for kernel in layer["kernels"]):
        spilled = (
            f", {kernel['spilled_bytes']:,} bytes spilled" if kernel["spilled_bytes"] else ", none spilled"
        )
        sentences.append(
            f"`{kernel['name']}`: {kernel['registers']} registers{spilled}, {kernel['shared_bytes']:,} bytes "
            f"of shared memory, {kernel['blocks']:,} blocks of {kernel['threads']:,} threads"
        )
    yield f"**What it did gain.** {'. '.join(sentences)}."
    if is_slower:
        if not page.slower:
            raise SystemExit(
                f"rung {page.number} was slower than the one before, and {page.file} does not say why"
            )
        yield f"**Why it is slower.** {page.slower}"


def all_networks(results_by_network: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of times of every network."""
    headings = ["network", *(str(rung["number"]) for rung in results_by_network[NETWORK]["rungs"])]
    rows = [
        [name, *(dash(None if rung["why_not"] else rung["op_ms"]) for rung in result["rungs"])]
        for name, result in results_by_network.items()
    ]
    return f"## Every network\n\nMilliseconds of the convolutions, rung by rung.\n\n{table(headings, rows)}"


if __name__ == "__main__":
    main()
