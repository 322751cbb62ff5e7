"""Write the measured tables of README.md and docs/ from benchmarks/h200.json, which results.py writes.

`python benchmarks/readme_tables.py` replaces what stands between `<!-- NAME -->` and `<!-- /NAME -->`, for
each table of TABLES that a page has a place for, with the card and the commit of its results below. The
places of `fused`, `one-image` and `real-models` stay empty until there are such results. A network without
results is no row of the tables of all networks, and named below.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
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
# Those of the first page: of the course, and such as people run.
FRONT = ("ece408-2019fa", "ece408-2018fa", "ece408-2020", "resnet50", "vgg16", "mobilenet-v2")
OTHER_SUITES = ("many-channels", "one-d", "three-d")
LONGEST_NAME = 36


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the first column to the left and the others to the right."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def comparisons(results: Results, names: Iterable[str], *, fused: bool = False) -> list[dict[str, Any]]:
    """Return what `compare`, or `compare --fuse`, found for each of the networks.

    All are of one machine and in one precision. Ends the program where results are missing or do not go
    together, or where answers were wrong.
    """
    folder = FUSED if fused else "compare"
    sections = [f"{folder}/{name}" for name in names]
    results.require(sections)
    found = [results[name] for name in sections]
    # Results from before there was --fuse do not say that they are without.
    if other := [each["model"] for each in found if each["options"].get("fuse", False) != fused]:
        raise SystemExit(
            f"the results of {', '.join(other)} in {folder} are {'not fused' if fused else 'fused'}"
        )
    check_same_kind(found, folder)
    if wrong := [each["model"] for each in found if not each["within_tolerance"]]:
        raise SystemExit(f"the answers of {', '.join(wrong)} differ; a time for a wrong answer says nothing")
    return found


def front(results: Results) -> str:
    """Some networks of the course and some that people run, as they are, swapped and fused."""
    plain, taken_in = comparisons(results, FRONT), comparisons(results, FRONT, fused=True)
    rows = []
    for found, fused_found in zip(plain, taken_in, strict=True):
        times = {side: found["time_ms"][side]["median"] for side in ("default", "convswap")}
        heuristic = found["others"].get("heuristic")
        fused_times = {side: fused_found["time_ms"][side]["median"] for side in times}
        rows.append(
            [
                found["model"],
                three_digits(times["default"]),
                "—" if heuristic is None else three_digits(heuristic["time_ms"]["median"]),
                three_digits(times["convswap"]),
                three_digits(fused_times["convswap"]),
                f"{three_digits(times['default'] / times['convswap'])}x",
                f"{three_digits(fused_times['default'] / fused_times['convswap'])}x",
                # All is all: a share just below is not rounded up to it.
                f"{math.floor(1e4 * found['top1_agreement']) / 1e2:g} %",
            ]
        )
    headings = [
        "network",
        "default",
        "HEURISTIC",
        "swapped",
        "fused",
        "speedup swapped",
        "speedup fused",
    ]
    return table([*headings, "top-1 agreement"], rows)


def networks(results: Results) -> str:
    """The course's networks against two settings, slowest default first."""
    rows = []
    for found in sorted(
        comparisons(results, NETWORKS), key=lambda found: -found["time_ms"]["default"]["median"]
    ):
        times = {side: found["time_ms"][side]["median"] for side in ("default", "convswap")}
        heuristic = found["others"]["heuristic"]["time_ms"]["median"]
        convs = {side: sum(layer[f"{side}_ms"] for layer in found["layers"]) for side in times}
        rows.append(
            [
                found["model"],
                f"{times['default']:.1f}",
                f"{heuristic:.1f}",
                f"{times['convswap']:.2f}",
                f"{times['default'] / times['convswap']:.1f}x",
                f"{convs['default'] / convs['convswap']:.0f}x",
                f"{found['accuracy']['default']:.4f}",
                f"{found['accuracy']['convswap']:.4f}",
                f"{found['top1_agreement']:.4f}",
            ]
        )
    headings = ["network", "default", "HEURISTIC", "convswap", "speedup", "Conv alone"]
    return table([*headings, "accuracy default", "accuracy convswap", "top-1 agreement"], rows)


def all_networks(results: Results) -> str:
    """Every network that has been compared; the others are named below.

    The large ones know no class: their accuracy is a dash.
    """
    names = [name for name in ALL_NETWORKS if f"compare/{name}" in results]
    missing = [name for name in ALL_NETWORKS if name not in names]
    rows = []
    for found in comparisons(results, names or ALL_NETWORKS):
        images = f"{found['images']:,}"
        if found["batch"] != found["images"]:
            images += f" by {found['batch']:,}"
        accuracy = [found["accuracy"][side] for side in ("default", "convswap")]
        times = [found["time_ms"][side]["median"] for side in ("default", "convswap")]
        rows.append(
            [
                found["model"],
                images,
                *("—" if share is None else f"{share:.4f}" for share in accuracy),
                f"{found['top1_agreement']:.4f}",
                f"{found['relative_l2_error']['convswap']:.1e}",
                *map(three_digits, times),
                f"{three_digits(times[0] / times[1])}x",
            ]
        )
    headings = ["network", "images", "accuracy default", "accuracy convswap", "top-1 agreement"]
    below = f"\n\nNot compared yet: {', '.join(missing)}." if missing else ""
    return table([*headings, "relative L2 error", "default", "convswap", "speedup"], rows) + below


def fused(results: Results) -> str:
    """Every network swapped alone, and fused too; what has not been compared fused is named below."""
    names = [name for name in ALL_NETWORKS if f"{FUSED}/{name}" in results]
    if not names:
        return ""
    missing = [name for name in ALL_NETWORKS if name not in names]
    alone, together = comparisons(results, names), comparisons(results, names, fused=True)
    check_same_kind([*alone, *together], "compare and compare-fused")
    rows = []
    for plain, each in zip(alone, together, strict=True):
        if any(plain[key] != each[key] for key in ("images", "batch", "dataset")):
            raise SystemExit(f"the results of {plain['model']}, fused and not, are of different data")
        times = [
            plain["time_ms"]["default"]["median"],
            plain["time_ms"]["convswap"]["median"],
            each["time_ms"]["convswap"]["median"],
        ]
        rows.append(
            [
                plain["model"],
                f"{convs_fused(each)} of {each['swapped']}",
                *map(three_digits, times),
                *(f"{three_digits(of_one['speedup'])}x" for of_one in (plain, each)),
                f"{each['top1_agreement']:.4f}",
                f"{each['relative_l2_error']['convswap']:.1e}",
            ]
        )
    headings = ["network", "Convs fused", "default", "swapped", "fused", "speedup swapped", "speedup fused"]
    return f"""\
The same networks with `--fuse`, medians in ms; *Convs fused* are those that took in others or, in front of a
1x1 Conv, were taken in, and each speedup is over the default in the same run:

{table([*headings, "top-1 agreement fused", "relative L2 error fused"], rows)}{
        f'''

Not compared fused yet: {', '.join(missing)}.'''
        if missing
        else ""
    }"""


def convs_fused(result: Mapping[str, Any]) -> int:
    """Return how many Convs share a node with something else."""
    taken_in = sum(one["op"] == "Conv" for node in result["fused"] for one in node["taken"])
    return len(result["fused"]) + taken_in


def layers(results: Results) -> str:
    """The convolutions of the course suite, each run waited for, and ours also back to back."""
    back_to_back = {(row["layer"], row["batch"]): row["convswap_ms"] for row in results["bench-algorithms"]}
    rows = [
        [
            row["layer"],
            f"{row['default_ms']:.2f}",
            f"{row['best_other_ms']:.2f}",
            f"{row['convswap_ms']:.2f}",
            f"{row['default_ms'] / row['convswap_ms']:.1f}x",
            f"{row['floor_ms']:.3f}",
            f"{100 * row['floor_ms'] / row['convswap_ms']:.0f} %",
            f"{back_to_back[row['layer'], row['batch']]:.3f}",
            f"{row['relative_l2_error']:.1e}",
        ]
        for row in results["bench-course"]
    ]
    headings = ["layer", "default", "best other setting", "convswap", "speedup", "floor", "of the floor"]
    return table([*headings, "back to back", "relative L2 error"], rows)


def other_layers(results: Results) -> str:
    """The layers of other networks, of one, two and three dimensions, each at its usual batch."""
    rows = [
        [
            row["layer"],
            f"{row['batch']}",
            f"`{row['algorithm']}`",
            three_digits(row["default_ms"]),
            three_digits(row["convswap_ms"]),
            f"{row['default_ms'] / row['convswap_ms']:.2f}x",
            f"{100 * row['floor_ms'] / row['convswap_ms']:.0f} %",
            f"{row['relative_l2_error']:.1e}",
        ]
        for suite in OTHER_SUITES
        for row in results[f"bench-{suite}"]
    ]
    headings = ["layer", "batch", "algorithm", "default", "convswap", "speedup", "of the floor"]
    return table([*headings, "relative L2 error"], rows)


def small_batches(results: Results) -> str:
    """How many times the faster of default and HEURISTIC each course layer is as fast, for each batch."""
    found = results["bench-small"]
    batches = list(dict.fromkeys(row["batch"] for row in found))
    speedups: dict[str, list[float]] = {}
    for row in found:
        fastest = min(row["default_ms"], row["others_ms"]["heuristic"])
        speedups.setdefault(row["layer"], []).append(fastest / row["convswap_ms"])
    means = [math.exp(fmean(map(math.log, own))) for own in zip(*speedups.values(), strict=True)]
    rows = [[name, *(f"{own:.2f}x" for own in each)] for name, each in speedups.items()]
    headings = ["layer", *(f"batch {batch:,}" for batch in batches)]
    return table(headings, [*rows, ["geometric mean", *(f"{mean:.2f}x" for mean in means)]])


def precisions(results: Results) -> str:
    """The course layers in ieee, beside the default without TF32, and in float16."""
    ieee, half = (
        {row["layer"]: row for row in results[f"bench-{precision}"]} for precision in ("ieee", "float16")
    )
    rows = []
    for layer, row in ieee.items():
        default, other = row["others_ms"]["no_tf32"], half[layer]
        rows.append(
            [
                layer,
                f"{default:.2f}",
                f"{row['convswap_ms']:.2f}",
                f"{default / row['convswap_ms']:.1f}x",
                f"{row['relative_l2_error']:.1e}",
                f"{other['default_ms']:.2f}",
                f"{other['best_other_ms']:.2f}",
                f"{other['convswap_ms']:.2f}",
                f"{other['default_ms'] / other['convswap_ms']:.1f}x",
                f"{100 * other['floor_ms'] / other['convswap_ms']:.0f} %",
            ]
        )
    headings = ["layer", "`use_tf32=0`", "convswap `ieee`", "speedup", "relative L2 error"]
    headings += ["default float16", "best other setting", "convswap float16", "speedup", "of the floor"]
    return table(headings, rows)


def one_image(results: Results) -> str:
    """The course's networks on one image."""
    if ONE_IMAGE not in results:
        return ""
    found = results[ONE_IMAGE]["rows"]
    times = {
        row["model"]: [row[kind][side] for kind in ("ms", "graph_ms") for side in SIDES] for row in found
    }
    times["together"] = [sum(column) for column in zip(*times.values(), strict=True)]
    rows = [[name, *(f"{milliseconds * 1e3:.1f}" for milliseconds in own)] for name, own in times.items()]
    headings = [*SIDES, *(f"{side} in a graph" for side in SIDES)]
    return f"""\
One image at a time, microseconds until the answer is there, as it is and with a CUDA graph:

{table(["network", *headings], rows)}"""


def real_models(results: Results) -> str:
    """Models that people ship; a dash where optimize leaves a model as it is."""
    if REAL_MODELS not in results:
        return ""
    found = results[REAL_MODELS]
    rows = []
    for row in found["rows"]:
        times = row["ms"]
        told = [three_digits(times[side]) if side in times else "—" for side in (*SIDES, "optimized")]
        gain, error = "—", "—"
        if "optimized" in times:
            gain = f"{times['default'] / times['optimized']:.2f}x"
            error = f"{row['relative_l2']['optimized']:.1e}"
        graphs = row["graph_ms"]
        told += [three_digits(graphs[side]) if side in graphs else "—" for side in ("default", "optimized")]
        rows.append(
            [row["model"], f"{row['batch']:,}", f"{row['taken']} of {row['convs']}", *told, gain, error]
        )
    headings = [
        "model",
        "batch",
        "Convs taken",
        *SIDES,
        "optimized",
        "default in a graph",
        "optimized in a graph",
        "speedup optimized",
        "relative L2 error",
    ]
    card, version = (found["environment"][key] for key in ("card", "onnxruntime"))
    return f"""\
## Models in use

Models that Python packages on PyPI carry, on one {card} with ONNX Runtime {version}, medians in ms. *Convs
taken* are those that `convswap optimize` swapped or fused; a dash stands where nothing gains at these
batches, and the model stays as it is, or where ONNX Runtime cannot capture the model as a CUDA graph. The
error is that of the optimized model against the default:

{table(headings, rows)}

`python tests/helpers/real_models.py FOLDER` writes the models and their inputs."""


def study(results: Results) -> str:
    """The parts of a run of AlexNet, at those batches that are powers of four."""
    rows = []
    for row in results["study-alexnet"]["rows"]:
        if math.log2(row["batch"]) % 2 == 0:
            times = [row[f"{part}_ms"] for part in STUDIED]
            told = ["-" if one is None else three_digits(one) if one else "0" for one in times]
            rows.append([f"{row['batch']:,}", row["side"], *told])
    return table(["batch", "side", *(part.replace("_", " ") for part in STUDIED)], rows)


def short_name(kernel: str) -> str:
    """Return a kernel's name without types, with the namespace if it is ours, and its beginning if long."""
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
        far = ["-" if one is None else f"{one / row['ncu_us'] - 1:+.1%}" for one in times]
        where = [row["network"], row["side"], ", ".join(row["nodes"]), f"`{short_name(row['kernel'])}`"]
        rows.append([*where, f"{row['ncu_us']:.1f}", f"{times[0]:.1f}", *far])
    headings = ["network", "side", "node", "kernel", "Nsight Compute", "`profile`"]
    return table([*headings, "difference", "difference, kernels apart"], rows)


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
    parser.add_argument("--readme", type=Path, help="one page; default: README.md and those of docs/")
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
    """Return what measured the sections that a table used, and where they come from."""
    groups = dict.fromkeys(name.partition("/")[0] for name in results.used if "/" in name)
    commands = dict.fromkeys(results.sections[name]["command"] for name in results.used if "/" not in name)
    if groups:
        commands[f"python benchmarks/results.py {shlex.join(f'{group}/*' for group in groups)}"] = None
    told = f"To measure again: {', '.join(f'`{command}`' for command in commands)}. {results.origin()}"
    return textwrap.fill(told, 120, break_long_words=False, break_on_hyphens=False)


def fill(page: Path, results: Results) -> list[str]:
    """Replace the tables that `page` has places for; return the names of those that are not empty."""
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
