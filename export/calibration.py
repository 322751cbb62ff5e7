"""Measures the statistics of batch normalisation on one seeded batch, for networks without training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from convswap.errors import ConvswapError
from convswap.export.builder import INPUT, build
from convswap.models import Network, place, seeded_images
from numpy.typing import NDArray
from onnx import helper

# Enough images for the statistics of the last layers, which have only 7x7 pixels.
IMAGES = 8


def batch_statistics(
    network: Network, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return the mean and variance of every batch normalisation of `network`, by name (`bn1.mean`).

    The statistics are measured on the seeded images. Each normalisation is measured after the normalisations
    before it use the statistics of the same images, so a similar batch is normalised to mean 0 and variance
    1. The last bits depend on the CPU, because ONNX Runtime adds in float32. Raises ConvswapError if ONNX
    Runtime is not installed.
    """
    unmeasured = {
        name: np.zeros(shape, np.float32) if name.endswith(".mean") else np.ones(shape, np.float32)
        for placed in place(network)
        for name, shape in placed.statistics.items()
    }
    if not unmeasured:
        return {}
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConvswapError(
            f"making {network.name} needs ONNX Runtime, which is not installed: in convswap's folder, "
            "pip install '.[cpu]'"
        ) from error
    model = build(network, {**weights, **unmeasured}, {})
    measured = _normalise_by_the_batch(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = session.run(list(measured), {INPUT: seeded_images(network, IMAGES)})
    return dict(zip(measured.values(), values, strict=True))


def _normalise_by_the_batch(model: onnx.ModelProto) -> dict[str, str]:
    """Make every batch normalisation use, and output, the statistics of its own input.

    Return the name of the statistic for each of these outputs.
    """
    measured = {}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            # Momentum is the weight of the old statistics in the new ones.
            node.attribute.extend(
                [helper.make_attribute("training_mode", 1), helper.make_attribute("momentum", 0.0)]
            )
            for statistic in node.input[3:]:
                node.output.append(f"{statistic}_of_batch")
                measured[node.output[-1]] = statistic
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in measured)
    return measured
