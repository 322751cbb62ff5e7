"""Write the measured tables of README.md and docs/ from benchmarks/h200.json, which results.py writes.

`python benchmarks/readme_tables.py` replaces the text between `<!-- NAME -->` and `<!-- /NAME -->` for each
table of TABLES that a page has markers for, and adds card and commit of the results below. `fused`,
`one-image` and `real-models` stay empty without results. Networks without results are listed below the tables
of all networks.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from convswap.models import ALL_NETWORKS, NETWORKS
from convswap.output.tables import three_digits
from results import H200, Results, check_same_kind

HERE = Path(__file__).parent
FUSED, ONE_IMAGE, REAL_MODELS = "compare-fused", "one-image", "real-models"
SIDES = ("default", "swapped", "fused")
STUDIED = ("copy_in", "convolution", "fully_connected", "max_pool", "copy_out", "other", "total", "set_up")
# Networks on the first page: three of the course and three in common use.
FRONT = ("ece408-2019fa", "ece408-2018fa", "ece408-2020", "resnet50", "vgg16", "mobilenet-v2")
OTHER_SUITES = ("many-channels", "one-d", "three-d")
LONGEST_NAME = 36


def table(headings: str, rows: Iterable[str]) -> str:
    """Return a Markdown table with the first column left-aligned and the others right-aligned.

    `headings` and each row have " | " between their cells.
    """
    lines = [headings, "---" + " | ---:" * headings.count(" | "), *rows]
    return "\n".join(f"| {line} |" for line in lines)


def times_of(result: Mapping[str, Any]) -> tuple[float, float]:
    """Return the median times of a comparison: the default provider's and convswap's."""
    return result["time_ms"]["default"]["median"], result["time_ms"]["convswap"]["median"]


def comparisons(results: Results, names: Iterable[str], *, fused: bool = False) -> list[dict[str, Any]]:
    """Return the results of `compare`, or `compare --fuse`, for each of the networks.

    All have one machine and one precision. Ends the program if results are missing or of different kinds, or
    if outputs were wrong.
    """
    folder = FUSED if fused else "compare"
    sections = [f"{folder}/{name}" for name in names]
    results.require(sections)
    compared = [results[name] for name in sections]
    # Results older than --fuse lack the option.
    if mismatched := [
        result["model"] for result in compared if result["options"].get("fuse", False) != fused
    ]:
        raise SystemExit(
            f"the results of {', '.join(mismatched)} in {folder} are {'not fused' if fused else 'fused'}"
        )
    check_same_kind(compared, folder)
    if wrong := [result["model"] for result in compared if not result["within_tolerance"]]:
        raise SystemExit(f"the outputs of {', '.join(wrong)} are wrong, so their times mean nothing")
    return compared


def front(results: Results) -> str:
    """Some course networks and some in common use: original, swapped and fused."""
    rows = []
    pairs = zip(comparisons(results, FRONT), comparisons(results, FRONT, fused=True), strict=True)
    for plain, fused_result in pairs:
        default, swapped = times_of(plain)
        default_of_fused, fused = times_of(fused_result)
        heuristic = plain["others"].get("heuristic")
        # Round down, so that only full agreement is 100 %.
        agreement = math.floor(1e4 * plain["top1_agreement"]) / 1e2
        rows.append(
            f"{plain['model']} | {three_digits(default)} | "
            f"{three_digits(heuristic['time_ms']['median']) if heuristic else '—'} | "
            f"{three_digits(swapped)} | {three_digits(fused)} | {three_digits(default / swapped)}x | "
            f"{three_digits(default_of_fused / fused)}x | {agreement:g} %"
        )
    headings = "network | default | HEURISTIC | swapped | fused | speedup swapped | speedup fused"
    return table(f"{headings} | top-1 agreement", rows)


def networks(results: Results) -> str:
    """The course networks against two settings of the default provider, slowest first."""
    rows = []
    for result in sorted(comparisons(results, NETWORKS), key=lambda result: -times_of(result)[0]):
        default, ours = times_of(result)
        convs = [sum(layer[f"{side}_ms"] for layer in result["layers"]) for side in ("default", "convswap")]
        rows.append(
            f"{result['model']} | {default:.1f} | {result['others']['heuristic']['time_ms']['median']:.1f} | "
            f"{ours:.2f} | {default / ours:.1f}x | {convs[0] / convs[1]:.0f}x | "
            f"{result['accuracy']['default']:.4f} | {result['accuracy']['convswap']:.4f} | "
            f"{result['top1_agreement']:.4f}"
        )
    headings = "network | default | HEURISTIC | convswap | speedup | Conv alone"
    return table(f"{headings} | accuracy default | accuracy convswap | top-1 agreement", rows)


def all_networks(results: Results) -> str:
    """Every network with results; the others are listed below.

    Large networks run on unlabelled data: their accuracy is a dash.
    """
    names = [name for name in ALL_NETWORKS if f"compare/{name}" in results]
    missing = [name for name in ALL_NETWORKS if name not in names]
    rows = []
    for result in comparisons(results, names or ALL_NETWORKS):
        default, ours = times_of(result)
        by_batch = f" by {result['batch']:,}" if result["batch"] != result["images"] else ""
        accuracies = [result["accuracy"][side] for side in ("default", "convswap")]
        accuracy = " | ".join("—" if share is None else f"{share:.4f}" for share in accuracies)
        rows.append(
            f"{result['model']} | {result['images']:,}{by_batch} | {accuracy} | "
            f"{result['top1_agreement']:.4f} | {result['relative_l2_error']['convswap']:.1e} | "
            f"{three_digits(default)} | {three_digits(ours)} | {three_digits(default / ours)}x"
        )
    headings = "network | images | accuracy default | accuracy convswap | top-1 agreement"
    footer = f"\n\nNot compared yet: {', '.join(missing)}." if missing else ""
    return table(f"{headings} | relative L2 error | default | convswap | speedup", rows) + footer


def fused(results: Results) -> str:
    """Every network swapped and fused; networks without fused results are listed below."""
    names = [name for name in ALL_NETWORKS if f"{FUSED}/{name}" in results]
    if not names:
        return ""
    missing = [name for name in ALL_NETWORKS if name not in names]
    swapped_results, fused_results = comparisons(results, names), comparisons(results, names, fused=True)
    check_same_kind([*swapped_results, *fused_results], "compare and compare-fused")
    rows = []
    for plain, result in zip(swapped_results, fused_results, strict=True):
        if any(plain[key] != result[key] for key in ("images", "batch", "dataset")):
            raise SystemExit(f"the results of {plain['model']}, fused and not, are of different data")
        default, swapped = times_of(plain)
        rows.append(
            f"{plain['model']} | {convs_fused(result)} of {result['swapped']} | {three_digits(default)} | "
            f"{three_digits(swapped)} | {three_digits(times_of(result)[1])} | "
            f"{three_digits(plain['speedup'])}x | {three_digits(result['speedup'])}x | "
            f"{result['top1_agreement']:.4f} | {result['relative_l2_error']['convswap']:.1e}"
        )
    headings = "network | Convs fused | default | swapped | fused | speedup swapped | speedup fused"
    footer = f"\n\nNot compared fused yet: {', '.join(missing)}." if missing else ""
    return f"""\
The same networks with `--fuse`, medians in ms; *Convs fused* are those that took in others or, in front of a
1x1 Conv, were taken in, and each speedup is over the default in the same run:

{table(f"{headings} | top-1 agreement fused | relative L2 error fused", rows)}{footer}"""


def convs_fused(result: Mapping[str, Any]) -> int:
    """Return the number of Convs in fused nodes."""
    taken_convs = sum(taken["op"] == "Conv" for node in result["fused"] for taken in node["taken"])
    return len(result["fused"]) + taken_convs


def of_the_floor(row: Mapping[str, Any]) -> str:
    """Return the floor of a layer as a percentage of our time."""
    return f"{100 * row['floor_ms'] / row['convswap_ms']:.0f} %"


def layers(results: Results) -> str:
    """The convolutions of the course suite in single runs, and ours also back to back."""
    back_to_back = {(row["layer"], row["batch"]): row["convswap_ms"] for row in results["bench-algorithms"]}
    rows = [
        f"{row['layer']} | {row['default_ms']:.2f} | {row['best_other_ms']:.2f} | {row['convswap_ms']:.2f} | "
        f"{row['default_ms'] / row['convswap_ms']:.1f}x | {row['floor_ms']:.3f} | {of_the_floor(row)} | "
        f"{back_to_back[row['layer'], row['batch']]:.3f} | {row['relative_l2_error']:.1e}"
        for row in results["bench-course"]
    ]
    headings = "layer | default | best other setting | convswap | speedup | floor | of the floor"
    return table(f"{headings} | back to back | relative L2 error", rows)


def other_layers(results: Results) -> str:
    """The layers of other networks, of one, two and three dimensions, each at its usual batch."""
    rows = [
        f"{row['layer']} | {row['batch']} | `{row['algorithm']}` | {three_digits(row['default_ms'])} | "
        f"{three_digits(row['convswap_ms'])} | {row['default_ms'] / row['convswap_ms']:.2f}x | "
        f"{of_the_floor(row)} | {row['relative_l2_error']:.1e}"
        for suite in OTHER_SUITES
        for row in results[f"bench-{suite}"]
    ]
    headings = "layer | batch | algorithm | default | convswap | speedup | of the floor | relative L2 error"
    return table(headings, rows)


def small_batches(results: Results) -> str:
    """Speedup over the faster of default and HEURISTIC, by course layer and batch."""
    bench_rows = results["bench-small"]
    speedups: dict[str, list[float]] = {}
    for row in bench_rows:
        fastest = min(row["default_ms"], row["others_ms"]["heuristic"])
        speedups.setdefault(row["layer"], []).append(fastest / row["convswap_ms"])
    columns = zip(*speedups.values(), strict=True)
    speedups["geometric mean"] = [math.exp(fmean(map(math.log, column))) for column in columns]
    batches = dict.fromkeys(f"batch {row['batch']:,}" for row in bench_rows)
    rows = [
        " | ".join([name, *(f"{speedup:.2f}x" for speedup in by_batch)])
        for name, by_batch in speedups.items()
    ]
    return table(" | ".join(["layer", *batches]), rows)


def precisions(results: Results) -> str:
    """The course layers in ieee against the default without TF32, and in float16."""
    ieee, float16 = results["bench-ieee"], results["bench-float16"]
    halves = {row["layer"]: row for row in float16}
    rows = []
    for row in ieee:
        default, half = row["others_ms"]["no_tf32"], halves[row["layer"]]
        rows.append(
            f"{row['layer']} | {default:.2f} | {row['convswap_ms']:.2f} | "
            f"{default / row['convswap_ms']:.1f}x | {row['relative_l2_error']:.1e} | "
            f"{half['default_ms']:.2f} | {half['best_other_ms']:.2f} | {half['convswap_ms']:.2f} | "
            f"{half['default_ms'] / half['convswap_ms']:.1f}x | {of_the_floor(half)}"
        )
    headings = "layer | `use_tf32=0` | convswap `ieee` | speedup | relative L2 error | default float16"
    return table(f"{headings} | best other setting | convswap float16 | speedup | of the floor", rows)


def one_image(results: Results) -> str:
    """The course networks on one image."""
    if ONE_IMAGE not in results:
        return ""
    model_rows = results[ONE_IMAGE]["rows"]
    times = {
        row["model"]: [row[kind][side] for kind in ("ms", "graph_ms") for side in SIDES] for row in model_rows
    }
    times["together"] = [sum(column) for column in zip(*times.values(), strict=True)]
    rows = [
        " | ".join([name, *(f"{ms * 1e3:.1f}" for ms in milliseconds)])
        for name, milliseconds in times.items()
    ]
    headings = " | ".join(["network", *SIDES, *(f"{side} in a graph" for side in SIDES)])
    return f"""\
One image at a time, microseconds until the answer is there, as it is and with a CUDA graph:

{table(headings, rows)}"""


def real_models(results: Results) -> str:
    """Models that packages ship; a dash if optimize leaves a model unchanged."""
    if REAL_MODELS not in results:
        return ""
    section = results[REAL_MODELS]
    rows = []
    for row in section["rows"]:
        times, graphs = row["ms"], row["graph_ms"]
        cells = [row["model"], f"{row['batch']:,}", f"{row['taken']} of {row['convs']}"]
        cells += [three_digits(times[s]) if s in times else "—" for s in (*SIDES, "optimized")]
        cells += [three_digits(graphs[s]) if s in graphs else "—" for s in ("default", "optimized")]
        if "optimized" in times:
            cells.append(f"{times['default'] / times['optimized']:.2f}x")
            cells.append(f"{row['relative_l2']['optimized']:.1e}")
        else:
            cells += ["—", "—"]
        rows.append(" | ".join(cells))
    headings = f"model | batch | Convs taken | {' | '.join(SIDES)} | optimized"
    headings += " | default in a graph | optimized in a graph | speedup optimized | relative L2 error"
    card, version = (section["environment"][key] for key in ("card", "onnxruntime"))
    return f"""\
## Models in use

Models that Python packages on PyPI carry, on one {card} with ONNX Runtime {version}, medians in ms. *Convs
taken* are those that `convswap optimize` swapped or fused; a dash stands where nothing gains at these
batches, and the model stays as it is, or where ONNX Runtime cannot capture the model as a CUDA graph. The
error is that of the optimized model against the default:

{table(headings, rows)}

`python tests/helpers/real_models.py FOLDER` writes the models and their inputs."""


def study(results: Results) -> str:
    """Times of the parts of a run of AlexNet, at batches that are powers of four."""
    rows = []
    for row in results["study-alexnet"]["rows"]:
        if math.log2(row["batch"]) % 2 == 0:
            times = [row[f"{part}_ms"] for part in STUDIED]
            cells = ["-" if one is None else three_digits(one) if one else "0" for one in times]
            rows.append(" | ".join([f"{row['batch']:,}", row["side"], *cells]))
    return table(" | ".join(["batch", "side", *STUDIED]).replace("_", " "), rows)


def short_name(kernel: str) -> str:
    """Return a kernel's name without types, shortened if long; our kernels keep their inner namespace."""
    name = re.sub(r"[<(].*", "", kernel.removeprefix("void "))
    name = name.removeprefix("convswap::") if name.startswith("convswap::") else name.split("::")[-1]
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def against_ncu(results: Results) -> str:
    """The times of long kernels by the profiler and by Nsight Compute."""
    rows = []
    for row in results["profile-against-ncu"]["rows"]:
        if row["ncu_us"] is None:
            continue
        times = [row["profile_us"], row["profile_apart_us"]]
        deviations = ["-" if one is None else f"{one / row['ncu_us'] - 1:+.1%}" for one in times]
        rows.append(
            f"{row['network']} | {row['side']} | {', '.join(row['nodes'])} | `{short_name(row['kernel'])}` | "
            f"{row['ncu_us']:.1f} | {row['profile_us']:.1f} | {' | '.join(deviations)}"
        )
    headings = "network | side | node | kernel | Nsight Compute | `profile`"
    return table(f"{headings} | difference | difference, kernels apart", rows)


TABLES = {
    "front": front,
    "networks": networks,
    "all-networks": all_networks,
    "fused": fused,
    "one-image": one_image,
    "real-models": real_models,
    "small-batches": small_batches,
    "precisions": precisions,
    "layers": layers,
    "other-layers": other_layers,
    "study": study,
    "against-ncu": against_ncu,
}


def main() -> None:
    """Replace the tables in the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--results", type=Path, default=H200, metavar="FILE", help="default: benchmarks/h200.json"
    )
    parser.add_argument("--readme", type=Path, help="one page; default: README.md and the pages of docs/")
    options = parser.parse_args()
    root = HERE.parent
    pages = (
        [options.readme] if options.readme else [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    )
    for page in pages:
        written = fill(page, Results(options.results))
        if written or page == options.readme:
            print(f"{page}: {', '.join(written) or 'no table'}")


def made_by(results: Results) -> str:
    """Return the commands that measure the sections of a table, and the origin of the results."""
    groups = dict.fromkeys(name.partition("/")[0] for name in results.used if "/" in name)
    commands = dict.fromkeys(results.sections[name]["command"] for name in results.used if "/" not in name)
    if groups:
        commands[f"python benchmarks/results.py {shlex.join(f'{group}/*' for group in groups)}"] = None
    text = f"To measure again: {', '.join(f'`{command}`' for command in commands)}. {results.origin()}"
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def fill(page: Path, results: Results) -> list[str]:
    """Replace the tables that `page` has markers for; return the names of the non-empty tables."""
    text = page.read_text(encoding="utf-8")
    written = []
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        places = text.count(begin), text.count(end)
        if places == (0, 0):
            continue
        if places != (1, 1):
            raise SystemExit(f"{page} has {places[0]} places {begin} and {places[1]} {end}; expected 1")
        content = make(results)
        if content:
            content += f"\n\n{made_by(results)}\n"
            written.append(name)
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text = pattern.sub(lambda _, lines=f"{begin}\n{content}{end}": lines, text)
    page.write_text(text, encoding="utf-8")
    return written


if __name__ == "__main__":
    main()
