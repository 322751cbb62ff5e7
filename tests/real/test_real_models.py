"""Models from PyPI give the same outputs swapped, fused, overridden, compared and optimised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
import real_models
from convswap.graph.plain_model import count_convolutions
from convswap.optimizing.choice import MIN_SPEEDUP_AT_A_BATCH
from convswap.reference.metrics import TOLERANCES, relative_l2_error
from convswap.runtime.device import choose_device
from convswap.runtime.sessions import CONVSWAP, convswap_side, make_session
from fused_conv_reference import all_nodes
from op_sessions import PROVIDERS

pytestmark = pytest.mark.extended

# Float32 on both sides: each rounds its own sums, through up to a hundred Convs in a row.
TOLERANCE = 1e-4
# Their Convs are in branches of an If, which cannot be measured as single nodes.
IN_SUBGRAPHS = ("silero-vad", "silero-vad-ifless")
# The float64 reference of this model takes two cores half a minute: the image has a fixed size.
TOO_LARGE_FOR_REFERENCE = "page-layout"
# Models that `optimize` measures in some seconds.
SMALL = ("magika", pytest.param("ppocr-direction", marks=pytest.mark.gpu))

COMPARED = [
    *(
        pytest.param(name, "cpu", id=f"{name}-cpu")
        for name in real_models.BY_NAME
        if name != TOO_LARGE_FOR_REFERENCE
    ),
    *(pytest.param(name, "cuda", id=f"{name}-cuda", marks=pytest.mark.gpu) for name in real_models.BY_NAME),
]

every_model = pytest.mark.parametrize("name", real_models.BY_NAME)


@dataclass(frozen=True)
class ModelWithOutputs:
    """A model, its input, and the CPU provider's outputs."""

    path: str
    feeds: Mapping[str, np.ndarray]
    expected: tuple[np.ndarray, ...]


def model_called(name: str) -> ModelWithOutputs:
    """Return the model called `name`; skip the test if it cannot be downloaded."""
    try:
        return _read_model(name)
    except real_models.UnreachableError as error:
        pytest.skip(str(error))


@cache
def _read_model(name: str) -> ModelWithOutputs:
    model = real_models.BY_NAME[name]
    path, feeds = str(real_models.fetch(model)), model.feeds()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    expected = tuple(session.run(None, feeds))
    assert all(np.ptp(values) > 0 for values in expected), "the input leaves an output without any contrast"
    return ModelWithOutputs(path, feeds, expected)


def assert_outputs(
    model: ModelWithOutputs,
    session: onnxruntime.InferenceSession,
    tolerance: float = TOLERANCE,
    samples: int | None = None,
) -> None:
    """Compare the outputs with those expected, of the first `samples` if that is a number."""
    outputs = session.run(None, dict(model.feeds))
    assert [values.shape for values in outputs] == [values.shape for values in model.expected]
    errors = [
        relative_l2_error(actual[:samples], expected[:samples])
        for actual, expected in zip(outputs, model.expected, strict=True)
    ]
    assert max(errors) <= tolerance, errors


@pytest.mark.slow
@every_model
def test_swapped_and_fused_it_gives_the_same_outputs(name, device):
    """test_compare_finds_it_within_the_tolerance covers swapping without fusing."""
    model = model_called(name)
    swapped = convswap.swap(model.path, precision="ieee", fuse=True).to_proto()
    convs = sum(node.op_type == "Conv" for node in all_nodes(onnx.load(model.path).graph))
    # A node with a depthwise Conv in front counts as two.
    assert sum(map(count_convolutions, all_nodes(swapped.graph))) == convs > 0
    chosen = choose_device(device)
    assert_outputs(model, make_session(swapped, convswap_side(chosen, "ieee"), chosen))


@every_model
def test_with_every_conv_overridden_it_gives_the_same_outputs(name, device):
    model = model_called(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider = (PROVIDERS[device], {"use_tf32": "0"} if device == "cuda" else {})
    assert_outputs(model, convswap.override_session(model.path, options, providers=[provider]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "device"), COMPARED, indirect=["device"])
def test_compare_finds_it_within_the_tolerance(name, device):
    model = model_called(name)
    result = convswap.compare(model.path, inputs=model.feeds, device=device, time_layers=False)
    assert result.within_tolerance, (result.convswap, result.default, result.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_what_optimize_writes_gives_the_same_outputs_and_is_not_slower(name, tmp_path, device):
    model = model_called(name)
    file = tmp_path / "optimized.onnx"
    result = convswap.optimize(model.path, file, inputs=model.feeds, device=device)
    assert all(node.default_ms for node in result.nodes)
    if result.written is None:
        assert not file.exists()
        return
    assert result.written == file and result.answers_agree
    assert all(each.speedup >= MIN_SPEEDUP_AT_A_BATCH for each in result.whole)
    session = make_session(onnx.load(file), CONVSWAP, choose_device(device))
    tolerance = TOLERANCE
    if device == "cuda":
        # The default provider's kernels differ from run to run. Ours may also compute in TF32 what the
        # default computes in TF32.
        tolerance = max(TOLERANCES["tf32"], 1.5 * result.errors.get("default", 0.0))
    # `optimize` compares the first sample. The second one of the text direction model lies between its two
    # classes, and its error is that of one number: 0.0029 once on a card.
    assert_outputs(model, session, tolerance, samples=1 if name == "ppocr-direction" else None)


@pytest.mark.parametrize("name", IN_SUBGRAPHS)
def test_optimize_measures_the_convs_of_branches_that_are_run_and_gives_reasons_for_the_others(
    name, tmp_path, device
):
    model = model_called(name)
    file = tmp_path / "optimized.onnx"
    result = convswap.optimize(model.path, file, inputs=model.feeds, device=device)
    assert any(node.default_ms for node in result.nodes)
    assert all(node.default_ms or "the branch that it is in" in node.why for node in result.nodes)
    assert file.exists() == (result.written is not None)
    if result.written is not None:
        session = make_session(onnx.load(file), CONVSWAP, choose_device(device))
        assert_outputs(model, session, TOLERANCE if device == "cpu" else TOLERANCES["tf32"])
