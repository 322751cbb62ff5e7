"""`compare` supports every ONNX op that ONNX Runtime runs, next to a Conv and after one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

pytestmark = pytest.mark.extended

# Minimum number of cases; fewer means that ONNX stores them differently. ONNX 1.23 and ONNX Runtime 1.32 have
# 172.
MIN_CASES = 140
UserInputs = dict[str, Any]


def cases() -> list[tuple[onnx.ModelProto, UserInputs]]:
    """Return the first node case of every op that ONNX Runtime runs, with the case's inputs."""
    # Some of the 1,800 cases warn when they are built.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected = [case for case in collect_testcases(None) if case.model is not None]
    of_op: dict[str, Any] = {}
    for case in collected:
        of_op.setdefault(case.model.graph.node[0].op_type, case)
    supported = []
    for case in of_op.values():
        values = (array_of(value) for value in case.data_sets[0][0])
        feeds = {
            value_info.name: value for value_info, value in zip(case.model.graph.input, values, strict=False)
        }
        if runs(case.model, feeds):
            supported.append((case.model, feeds))
    assert len(supported) >= MIN_CASES
    return supported


def array_of(value: Any) -> Any:
    """Return an input of a case in the form that `convswap.compare` accepts."""
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def runs(model: onnx.ModelProto, feeds: UserInputs) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers).run(None, feeds)
    except Exception:  # ONNX Runtime's own errors are not the subject of this test.
        return False
    return True


def with_independent_conv(
    model: onnx.ModelProto, feeds: UserInputs
) -> Iterator[tuple[onnx.ModelProto, UserInputs]]:
    """Yield the model with an independent Conv."""
    image, weights = np.linspace(-1, 1, 36, dtype=np.float32), np.linspace(-1, 1, 18, dtype=np.float32)
    model_with_conv = with_conv(
        model, "conv_x", "conv_y", weights.reshape(2, 1, 3, 3), at=len(model.graph.node)
    )
    model_with_conv.graph.input.append(
        helper.make_tensor_value_info("conv_x", onnx.TensorProto.FLOAT, [1, 1, 6, 6])
    )
    model_with_conv.graph.output.append(
        helper.make_tensor_value_info("conv_y", onnx.TensorProto.FLOAT, [1, 2, 4, 4])
    )
    yield model_with_conv, {**feeds, "conv_x": image.reshape(1, 1, 6, 6)}


def after_conv(model: onnx.ModelProto, feeds: UserInputs) -> Iterator[tuple[onnx.ModelProto, UserInputs]]:
    """Yield the model with an identity Conv before each input that a Conv can produce."""
    for name, value in feeds.items():
        is_image = isinstance(value, np.ndarray) and value.dtype == np.float32 and 3 <= value.ndim <= 5
        if is_image and value.size:
            channels, axes = value.shape[1], value.ndim - 2
            identity = np.eye(channels, dtype=np.float32).reshape(channels, channels, *(1,) * axes)
            changed = onnx.ModelProto.FromString(model.SerializeToString())
            for node in changed.graph.node:
                node.input[:] = ["conv_y" if each == name else each for each in node.input]
            changed = with_conv(changed, name, "conv_y", identity, at=0)
            if runs(changed, feeds):
                yield changed, feeds


def with_conv(model: onnx.ModelProto, x: str, y: str, weights: np.ndarray, at: int) -> onnx.ModelProto:
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    changed.graph.node.insert(at, helper.make_node("Conv", [x, "conv_w"], [y], name="conv"))
    changed.graph.initializer.append(numpy_helper.from_array(weights, "conv_w"))
    if not any(opset.domain in ("", "ai.onnx") for opset in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid("", 13))
    return changed


def test_the_outputs_of_every_op_agree():
    wrong, swapped = {}, 0
    for case in cases():
        variants = [*with_independent_conv(*case), *after_conv(*case)]
        for number, (model, feeds) in enumerate(variants):
            op = f"{case[0].graph.node[0].op_type} {'behind' if number else 'beside'}"
            try:
                result = convswap.compare(model, device="cpu", inputs=feeds, fuse=True, time_layers=False)
            except Exception as error:  # Unexpected exceptions too: the failure names every op.
                wrong[op] = f"{type(error).__name__}: {error}"
            else:
                swapped += bool(result.swapped)
                if not result.within_tolerance:
                    wrong[op] = f"the answers differ; {'; '.join(result.notes)}"
    assert wrong == {}
    assert swapped > 150
