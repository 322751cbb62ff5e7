"""Records of blocks merge to the record of all samples, and are the same after they were kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from convswap.errors import ConvswapError
from convswap.evaluation.records import KeptRecords, merged, record_of
from convswap.evaluation.samples import Block

RANDOM = np.random.default_rng(3)
# Whole numbers tie, and noise makes the sides differ.
DEFAULT = np.rint(2 * RANDOM.standard_normal((40, 8)).astype(np.float32)) / 2
CONVSWAP = DEFAULT + (RANDOM.random((40, 1)) < 0.3) * RANDOM.standard_normal(DEFAULT.shape)
LABELS = RANDOM.integers(0, 8, 40)


def record(start, stop):
    scores = {"default": DEFAULT[start:stop], "convswap": CONVSWAP[start:stop]}
    return record_of(Block(start, start, stop), scores, LABELS[start:stop], {"waiting": 0.25})


def test_counts_and_differences_are_those_of_sorts():
    found = record(0, 40)
    first = {}
    for side, values in (("default", DEFAULT), ("convswap", CONVSWAP)):
        order = np.argsort(-values, axis=1, kind="stable")
        first[side] = order[:, 0]
        assert found.counts[f"{side}_top1"] == np.sum(order[:, 0] == LABELS)
        assert found.counts[f"{side}_top5"] == np.sum(order[:, :5] == LABELS[:, np.newaxis])
    differ = first["default"] != first["convswap"]
    assert 0 < found.counts["agreeing"] == 40 - differ.sum() < 40
    difference = np.abs(CONVSWAP - DEFAULT).max(axis=1)
    expected = sorted(range(40), key=lambda index: (not differ[index], -difference[index], index))[:20]
    assert [item.sample for item in found.largest] == expected
    assert [item.difference for item in found.largest] == [difference[index] for index in expected]


@pytest.mark.parametrize("cuts", [[0, 40], [0, 1, 40], [0, 7, 11, 30, 40], range(41)])
def test_merged_records_are_those_of_all_samples(cuts):
    parts, whole = [record(*cut) for cut in pairwise(cuts)], record(0, 40)
    groups = [merged(parts[:2]), merged(parts[2:])] if len(parts) > 2 else parts
    for together in (merged(parts), merged(groups)):
        assert together.counts == whole.counts and together.largest == whole.largest
    assert merged(parts).run == {"waiting": 0.25 * len(parts)}


def test_samples_without_finite_scores_have_no_class_and_are_kept(tmp_path):
    scores = {"default": DEFAULT[:4].copy(), "convswap": CONVSWAP[:4].copy()}
    scores["default"][0] = scores["convswap"][0] = np.nan
    scores["convswap"][1, 2] = np.nan
    scores["default"][2, 1] = scores["convswap"][2, 1] = np.inf
    found = record_of(Block(3, 0, 4), scores, LABELS[:4], {})
    assert (found.counts["samples"], found.counts["without_class"]) == (4, 2)
    assert found.largest[0][:2] == (1, np.inf) and found.largest[0].convswap == -1
    KeptRecords(tmp_path / "kept", {"batch": 4}).save(Block(3, 0, 4), found)
    again = KeptRecords(tmp_path / "kept", {"batch": 4})
    assert again.load([Block(2, 0, 4), Block(3, 0, 4)]) == {Block(3, 0, 4): found}


@pytest.mark.parametrize("content", ["[1]", "null", "7", "{"])
def test_a_folder_that_is_no_evaluations_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(ConvswapError, match=r"cannot keep results in .*; give --resume a new folder"):
        KeptRecords(tmp_path, {"batch": 4})


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"counts": {}, "run": {}, "largest": [7]}'])
def test_a_damaged_record_is_computed_again(content, tmp_path):
    store, block = KeptRecords(tmp_path, {"batch": 4}), Block(0, 0, 4)
    store.save(block, record(0, 4))
    (file,) = tmp_path.glob("block-*.json")
    file.write_text(content)
    assert store.load([block]) == {}
