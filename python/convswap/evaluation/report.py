"""The tables of an evaluation on a terminal, and a page of HTML with a contact sheet."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.evaluation.evaluate import Evaluation
from convswap.evaluation.records import SIDES, TOPS
from convswap.evaluation.samples import Block
from convswap.inputs.predictions import Caption, contact_sheet
from convswap.output.drawing import png
from convswap.output.pages import html_page, html_table, paragraph
from convswap.output.tables import error, plain_table, versions_line
from convswap.reference.metrics import NO_CLASS

# Samples in the terminal's table of differences; the page and the JSON have all.
_SHOWN = 5
# Longer names of classes would overlap on the contact sheet.
_CLASS_LETTERS = 15


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print accuracy, agreement, the largest differences and the time."""
    for line in [*_heading(evaluation), ""]:
        console.print(Text(line))
    for table in _tables(evaluation, _SHOWN):
        console.print(table)
    for line in _findings(evaluation):
        console.print(Text(line))


def evaluation_html(evaluation: Evaluation, made: str) -> str:
    """Return the page, with `made`, the command and the date, at its end.

    Raises:
        ConvswapError: matplotlib, which draws the contact sheet, is not installed.
    """
    title, *circumstances = _heading(evaluation)
    parts = [*map(paragraph, [*circumstances, *_findings(evaluation)]), *map(html_table, _tables(evaluation))]
    return html_page(title, [*parts, _sheet(evaluation), paragraph(made)])


def _heading(evaluation: Evaluation) -> list[str]:
    device, values, options = evaluation.job.device, evaluation.values, evaluation.values["options"]
    return [
        f"{values['model']}: {device.provider} by default, and with convswap's Conv",
        versions_line(values["environment"], device.title),
        f"{values['images']:,} images of {values['dataset']}, batch {options['batch']:,}, precision "
        f"{options['precision']}, algorithm {options['algorithm']}{', fused' if options['fuse'] else ''}",
    ]


def _tables(evaluation: Evaluation, shown: int | None = None) -> list[Table]:
    values = evaluation.values
    accuracy = plain_table("Accuracy", "side", ">top-1", ">top-5")
    for side in SIDES:
        shares = (values[f"top{top}_accuracy"][side] for top in TOPS)
        accuracy.add_row(side, *("-" if share is None else f"{share:.4f}" for share in shares))
    title = "Samples on which the sides differ most, those with two classes first"
    differences = plain_table(title, "sample", "label", "default", "convswap", ">difference")
    differing = [item for item in values["largest_differences"] if item["difference"]]
    for item in differing[:shown]:
        classes = (_class(evaluation, item[key]) for key in ("label", *SIDES))
        differences.add_row(Text(item["name"]), *map(Text, classes), error(item["difference"]))
    return [accuracy, differences] if differing else [accuracy]


def _class(evaluation: Evaluation, number: int | None) -> str:
    if number is None or number == NO_CLASS:
        return "-"
    names: Sequence[str] = evaluation.job.samples.class_names or ()
    return names[number] if number < len(names) else str(number)


def _findings(evaluation: Evaluation) -> list[str]:
    values, run = evaluation.values, evaluation.values["run"]
    counts, agreement = values["counts"], values["top1_agreement"]
    lines = ["No image has a class on either side."]
    if agreement is not None:
        # 100 % only if it is the whole.
        having, share = values["images"] - counts["without_class"], int(agreement * 1e6) / 1e4
        lines = [
            f"The sides name the same class for {counts['agreeing']:,} of {having:,} images, {share:g} %."
        ]
    if not any(item["difference"] for item in values["largest_differences"]):
        lines.append("The outputs of both sides are equal.")
    if run["kept_blocks"] or run["repeated_blocks"]:
        lines.append(
            f"{run['kept_blocks']:,} blocks kept by an earlier run, "
            f"{run['repeated_blocks']:,} computed again after a process ended."
        )
    decoders = f" {_percent(run['decoding'])} of the time of {run['processes']} processes"
    computing = ", ".join(f"{side} {_percent(share)}" for side, share in run["computing"].items())
    return [
        *lines,
        f"{run['images']:,} images in {run['seconds']:,.1f} s, {run['images_per_second']:,.0f} a second: "
        f"decoding{decoders if run['processes'] else ' in a thread'}, computing {computing}, waiting for "
        f"images {_percent(run['waiting'])}.",
        f"{values['swapped']} Conv swapped, {len(values['left'])} left.",
        *(f"Note: {note}." for note in values["notes"]),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _sheet(evaluation: Evaluation) -> str:
    """Return the contact sheet of the largest differences as HTML; "" without images."""
    images = [
        pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0) for pixels in _pictures(evaluation)
    ]
    if not images:
        return ""
    title = f"The {len(images)} images on which the sides differ most"
    captions = [_caption(evaluation, item) for item in evaluation.values["largest_differences"]]
    encoded = base64.b64encode(png(contact_sheet(title, images, captions))).decode()
    return f'<img alt="{title}" src="data:image/png;base64,{encoded}" style="max-width: 100%">'


def _pictures(evaluation: Evaluation) -> list[np.ndarray]:
    """Return the images (channels, height, width) of the largest differences; none for random values."""
    samples = evaluation.job.samples
    wanted = [item["sample"] for item in evaluation.values["largest_differences"] if samples.has_images]
    blocks = [Block(number, index, index + 1) for number, index in enumerate(sorted(wanted))]
    pictures = {}
    for block, part in zip(blocks, samples.parts(blocks), strict=True):
        decoded = part.decode()
        (pixels,) = [decoded] if isinstance(decoded, np.ndarray) else decoded[0][0].values()
        pictures[block.start] = pixels[0]
    return [pictures[index] for index in wanted]


def _caption(evaluation: Evaluation, item: Mapping[str, Any]) -> Caption:
    lines = []
    for key in (*SIDES, "label"):
        name, colour = _class(evaluation, item[key]), "black"
        if item["label"] is not None and key != "label":
            colour = "green" if item[key] == item["label"] else "red"
        cut = name if len(name) <= _CLASS_LETTERS else f"{name[: _CLASS_LETTERS - 1]}…"
        lines.append((f"{key}: {cut}", colour))
    return lines
