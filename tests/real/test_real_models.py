"""Models that people run: swapped, fused, overridden, compared and optimised, they answer as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from op_sessions import PROVIDERS

pytestmark = pytest.mark.extended

# Float32 on both sides: each rounds every sum by itself, and up to a hundred Convs follow each other.
TOLERANCE = 1e-4
# Convs in the branches of an If, which nothing can measure alone.
IN_SUBGRAPHS = ("silero-vad", "silero-vad-ifless")
# Its float64 reference alone takes a processor of two cores half a minute: the image has a fixed size.
TOO_LARGE_FOR_REFERENCE = "page-layout"
# Of those that `optimize` measures in some seconds.
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
class Asked:
    """A model, its input, and what the CPU provider answers."""

    path: str
    feeds: Mapping[str, np.ndarray]
    expected: tuple[np.ndarray, ...]


def asked(name: str) -> Asked:
    """Return the model called `name`; skips where it cannot be had."""
    try:
        return _asked(name)
    except real_models.UnreachableError as error:
        pytest.skip(str(error))


@cache
def _asked(name: str) -> Asked:
    model = real_models.BY_NAME[name]
    path, feeds = str(real_models.fetch(model)), model.feeds()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    expected = tuple(session.run(None, feeds))
    assert all(np.ptp(values) > 0 for values in expected), "the input leaves an output without any contrast"
    return Asked(path, feeds, expected)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph, those of subgraphs too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from all_nodes(attribute.g)


def assert_answers(
    model: Asked,
    session: onnxruntime.InferenceSession,
    tolerance: float = TOLERANCE,
    samples: int | None = None,
) -> None:
    """Check the outputs, of the first `samples` where there is a number, against those expected."""
    outputs = session.run(None, dict(model.feeds))
    assert [values.shape for values in outputs] == [values.shape for values in model.expected]
    errors = [
        relative_l2_error(own[:samples], expected[:samples])
        for own, expected in zip(outputs, model.expected, strict=True)
    ]
    assert max(errors) <= tolerance, errors


@pytest.mark.slow
@every_model
def test_swapped_and_fused_it_answers_as_before(name, device):
    """Swapped alone it is compared below."""
    model = asked(name)
    swapped = convswap.swap(model.path, precision="ieee", fuse=True).to_proto()
    convs = sum(node.op_type == "Conv" for node in all_nodes(onnx.load(model.path).graph))
    # A node with a depthwise Conv in front is two of them.
    assert sum(map(count_convolutions, all_nodes(swapped.graph))) == convs > 0
    chosen = choose_device(device)
    assert_answers(model, make_session(swapped, convswap_side(chosen, "ieee"), chosen))


@every_model
def test_with_every_conv_overridden_it_answers_as_before(name, device):
    model = asked(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider = (PROVIDERS[device], {"use_tf32": "0"} if device == "cuda" else {})
    assert_answers(model, convswap.override_session(model.path, options, providers=[provider]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "device"), COMPARED, indirect=["device"])
def test_compare_finds_it_within_the_tolerance(name, device):
    model = asked(name)
    found = convswap.compare(model.path, inputs=model.feeds, device=device, time_layers=False)
    assert found.within_tolerance, (found.convswap, found.default, found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_what_optimize_writes_answers_as_before_and_is_not_slower(name, tmp_path, device):
    model = asked(name)
    file = tmp_path / "optimized.onnx"
    found = convswap.optimize(model.path, file, inputs=model.feeds, device=device)
    assert all(node.default_ms for node in found.nodes)
    if found.written is None:
        assert not file.exists()
        return
    assert found.written == file and found.answers_agree
    assert all(one.speedup >= MIN_SPEEDUP_AT_A_BATCH for one in found.whole)
    session = make_session(onnx.load(file), CONVSWAP, choose_device(device))
    tolerance = TOLERANCE
    if device == "cuda":
        # The default provider's kernels differ from run to run, and what it computes in TF32 ours may, too.
        tolerance = max(TOLERANCES["tf32"], 1.5 * found.errors.get("default", 0.0))
    # `optimize` judges the first sample. The text direction's second is one between both classes, and its
    # error that of one number: it was 0.0029 once on a card.
    assert_answers(model, session, tolerance, samples=1 if name == "ppocr-direction" else None)


@pytest.mark.parametrize("name", IN_SUBGRAPHS)
def test_optimize_measures_the_convs_of_branches_that_are_run_and_tells_why_not_of_the_others(
    name, tmp_path, device
):
    model = asked(name)
    file = tmp_path / "optimized.onnx"
    found = convswap.optimize(model.path, file, inputs=model.feeds, device=device)
    assert any(node.default_ms for node in found.nodes)
    assert all(node.default_ms or "the branch that it is in" in node.why for node in found.nodes)
    assert file.exists() == (found.written is not None)
    if found.written is not None:
        session = make_session(onnx.load(file), CONVSWAP, choose_device(device))
        assert_answers(model, session, TOLERANCE if device == "cpu" else TOLERANCES["tf32"])
