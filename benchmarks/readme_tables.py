"""Write the measured tables of README.md from the results beside this file.

The results are what these commands wrote with --json on the card that the folder is named after:

    convswap compare NETWORK --against all --json benchmarks/h200/compare/NETWORK.json
    convswap bench course --against all --json benchmarks/h200/bench-course.json

`python benchmarks/readme_tables.py` replaces what stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
RESULTS = HERE / "h200"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the first column to the left and the others to the right."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def networks() -> str:
    """The whole networks, slowest default first."""
    comparisons = [json.loads(path.read_text()) for path in (RESULTS / "compare").glob("*.json")]
    rows = []
    for found in sorted(comparisons, key=lambda found: -found["time_ms"]["default"]["median"]):
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
    return table([*headings, "accuracy default", "accuracy convswap", "same class"], rows)


def layers() -> str:
    """The convolutions of the course suite."""
    rows = [
        [
            row["layer"],
            f"{row['default_ms']:.2f}",
            f"{row['best_other_ms']:.2f}",
            f"{row['convswap_ms']:.2f}",
            f"{row['default_ms'] / row['convswap_ms']:.1f}x",
            f"{row['floor_ms']:.3f}",
            f"{100 * row['floor_ms'] / row['convswap_ms']:.0f} %",
            f"{row['relative_l2_error']:.1e}",
        ]
        for row in json.loads((RESULTS / "bench-course.json").read_text())
    ]
    headings = ["layer", "default", "best other setting", "convswap", "speedup", "floor", "of the floor"]
    return table([*headings, "relative L2 error"], rows)


def main() -> None:
    """Replace both tables in README.md."""
    text = README.read_text()
    for name, content in (("networks", networks()), ("layers", layers())):
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = pattern.subn(f"{begin}\n{content}\n{end}", text)
        if count != 1:
            raise SystemExit(f"README.md has {count} places {begin} ... {end}; expected 1")
    README.write_text(text)


if __name__ == "__main__":
    main()
