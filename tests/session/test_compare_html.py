"""`compare --html`: the page has the terminal's content, in self-contained HTML."""

from __future__ import annotations

import html.parser
import json
import re
import sys
from dataclasses import replace

import pytest
from command_line import refusal
from comparisons import LONG_NODE, REASON, example
from convswap.cli.main import main
from convswap.comparison.report import MAX_LAYERS, compare_html, print_comparison
from convswap.comparison.result import Comparison, LayerResult, SideResult
from convswap.graph.fusion.fuse import Fused
from convswap.timing.sampler import Times
from printed import printed

VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """The visible content of a page: texts of tables, paragraphs, and bars with their names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.paragraphs: list[str] = []
        self.titles: list[str] = []
        self.times: list[str] = []
        self.shares: dict[str, list[float]] = {}
        self.words: list[str] = []
        self.kinds: dict[str, list[int]] = {}
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        by_name = dict(attributes)
        self.links += [by_name[name] or "" for name in ("src", "href", "xlink:href") if name in by_name]
        if tag in VOID:
            return
        self.open.append(tag)
        self.classes.append(by_name.get("class") or "")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "p":
            self.paragraphs.append("")
            self.kinds.setdefault(by_name.get("class") or "", []).append(len(self.paragraphs) - 1)
        elif "--share" in (by_name.get("style") or ""):
            share = float((by_name["style"] or "").removeprefix("--share: "))
            self.shares.setdefault(by_name.get("class") or "", []).append(share)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.classes = self.classes[: len(self.open)]

    def handle_data(self, text: str) -> None:
        match self.open[-1:]:
            case ["td" | "th"]:
                self.tables[-1][-1][-1] += text
            case ["p"]:
                self.paragraphs[-1] += text
            case ["caption"]:
                self.captions.append(text)
            case ["span"] if self.classes[-1] == "title":
                self.titles.append(text)
            case ["span"] if self.classes[-1] == "ms":
                self.times.append(text)
            case _:
                self.words.append(text.strip())


def page_of(comparison: Comparison) -> Page:
    page = Page(compare_html(comparison))
    assert page.open == []
    return page


def many_layers(count: int) -> tuple[LayerResult, ...]:
    """Return layers in ascending order of time, so the last ones are the longest."""
    errors = {"default": 1e-4, "convswap": 1e-4}
    return tuple(
        LayerResult(f"conv{i}", "tiled", {"default": 1.0 + i, "convswap": 0.5}, 0.25, errors)
        for i in range(count)
    )


def test_page_has_every_word_of_the_terminal_and_in_its_order():
    nhwc = SideResult(Times(19.5, 20.1, 90.0, 20), 0.7653, 1.2e-3, 4.1e-4, {"prefer_nhwc": "1"})
    plain = example()
    layers = tuple(replace(each, milliseconds={**each.milliseconds, "nhwc": 3.25}) for each in plain.layers)
    comparison = replace(plain, sides={**plain.sides, "nhwc": nhwc}, layers=layers)
    # Wide enough that no line is wrapped.
    text = printed(print_comparison, comparison, width=1000)
    lines = [line for line in text.splitlines() if line.strip(" ─")]
    page = page_of(comparison)
    assert [len(table) for table in page.tables] == [4, 5, 4, 2]
    rows = {re.sub(r"\s+", " ", " ".join(row)).strip() for table in page.tables for row in table}
    joined = [re.sub(r"\s+", " ", line).strip() for line in lines]
    outside_tables = [line for line in joined if line not in rows]
    title, *notes = outside_tables
    assert title == "net.onnx: CUDAExecutionProvider by default, and with convswap's Conv"
    assert sorted(notes) == sorted([*page.captions, *page.paragraphs])
    assert [line for line in joined if line in rows] == [
        re.sub(r"\s+", " ", " ".join(row)).strip() for table in page.tables for row in table
    ]


def test_page_is_self_contained():
    text = compare_html(example())
    assert Page(text).links == [] and "url(" not in text and "<script" not in text


def test_each_bar_has_its_time_and_begins_at_zero():
    page = page_of(example())
    assert page.titles == ["default", "convswap", "conv1", LONG_NODE]
    assert page.times == ["59.2", "4.47", "47.8", "0.885", "9.22", "1.05"]
    # The end-to-end bars have one scale, and the bars of all layers another.
    assert page.shares["fill default"] == pytest.approx([1, 1, 9.22 / 47.8])
    assert page.shares["fill convswap"] == pytest.approx([4.47 / 59.2, 0.885 / 47.8, 1.05 / 47.8], rel=1e-2)
    assert page.shares["floor"] == pytest.approx([0.532 / 47.8] * 2)


def test_the_speedup_and_the_verdict_come_first():
    words = [word for word in page_of(example()).words if word]
    assert words[words.index("as fast as the default provider") - 1] == "13.24x"
    assert page_of(example()).paragraphs[0].startswith("The outputs agree: ")


def test_each_layer_has_its_algorithm_its_gain_and_its_errors():
    words = page_of(example()).words
    assert "few_channels, 54.01x; error 3.10e-04 by default, 2.90e-04 with convswap" in words


def test_bars_and_tables_leave_out_what_was_not_measured():
    with_floor, without = example().layers
    assert page_of(example(layers=(with_floor,))).shares["floor"]
    assert "floor" not in page_of(example(layers=(without,))).shares
    page = page_of(example(layers=(), left=()))
    assert page.titles == ["default", "convswap"] and len(page.tables) == 1


def test_of_many_layers_the_longest_have_bars_and_the_table_has_all():
    page = page_of(example(layers=many_layers(MAX_LAYERS + 3)))
    assert page.titles[2:] == [f"conv{i}" for i in range(3, MAX_LAYERS + 3)]
    note = "The 40 of 43 layers that take the default longest."
    assert any(text.endswith(note) for text in page.words)
    assert not any("longest" in text for text in page_of(example(layers=many_layers(MAX_LAYERS))).words)
    assert [row[0] for row in page.tables[1][1:4]] == ["conv0", "conv1", "conv2"]


def test_the_page_says_by_what_it_was_made():
    assert Page(compare_html(example(), "Made by `convswap compare` today.")).paragraphs[-1] == (
        "Made by `convswap compare` today."
    )


def test_outputs_that_differ_stand_out():
    assert "wrong" not in page_of(example()).kinds
    page = page_of(example(tolerance=1e-5))
    (number,) = page.kinds["wrong"]
    assert page.paragraphs[number].startswith("THE OUTPUTS DIFFER: relative L2 error 4.00e-04")


def test_names_are_text_and_neither_markup_nor_formulas():
    name = "<blink>$\\frac{1}$</blink>&amp;"
    layers = (replace(example().layers[0], node=name, fused=("Relu",)),)
    fused = (Fused(name, "FusedConv", (("Relu", name),)),)
    comparison = example(model=name, layers=layers, fused=fused, notes=(name,))
    assert "<blink>" not in compare_html(comparison)
    page = page_of(comparison)
    assert page.tables[1][1][0] == f"{name} + Relu"
    assert f"{name} + Relu" in page.titles
    assert any(paragraph == f"Note: {name}." for paragraph in page.paragraphs)


def test_the_same_comparison_gives_the_same_page():
    assert compare_html(example()) == compare_html(example())


def test_command_writes_the_page_of_what_it_prints(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["ece408-2017-low", "--data", "synthetic", "--images", "4", "--device", "cpu"]
    assert main(["compare", *arguments, "--html", "c.html", "--json", "c.json"]) == 0
    page = Page((tmp_path / "c.html").read_text())
    output = capsys.readouterr().out
    assert any(paragraph.startswith("The outputs agree:") for paragraph in page.paragraphs)
    assert page.paragraphs[-1].startswith(f"Made by `convswap compare {' '.join(arguments)} --html c.html")
    assert all(row[1] in output for row in page.tables[0][1:])
    report = json.loads((tmp_path / "c.json").read_text())
    assert [row[0] for row in page.tables[1][1:]][:1] == [report["layers"][0]["node"]]
    assert REASON not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "no/such/c.html"], "there is no folder 'no/such'"),
        (
            ["--json", "one", "--html", "one"],
            "cannot write 'one': it is what --json writes, and",
        ),
        (["--html", "."], "cannot write '.': it is a folder"),
    ],
)
def test_page_that_cannot_be_written_is_refused_before_the_work(
    capsys, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, "compare", "ece408-2017-low", *arguments)


def test_page_never_takes_the_place_of_the_model(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "ece408-2017-low", "-o", "net.onnx"]) == 0
    before = (tmp_path / "net.onnx").read_bytes()
    capsys.readouterr()
    line = refusal(capsys, "compare", "net.onnx", "--html", "net.onnx")
    assert "cannot write 'net.onnx': it is the model that is read, and --html would replace it" in line
    assert (tmp_path / "net.onnx").read_bytes() == before


def test_without_matplotlib_the_page_of_the_ladder_is_refused_before_the_work(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refusal(capsys, "ladder", "ece408-2017-low", "--html", "c.html")
    assert "drawing needs matplotlib, which is not installed: pip install matplotlib" in line
    assert not list(tmp_path.iterdir())
