"""The course's own checkpoint: accuracy and agreement on all 10,000 test images."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from convswap.data import datasets
from convswap.export import read_mxnet
from convswap.graph.swap import swap
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, CONVSWAP_IEEE, DEFAULT, make_session, run
from repeats import repeats

# Accuracies on the first images, from the course's table.
ACCURACIES = {"ece408": {100: 0.84, 1_000: 0.852, 10_000: 0.8398}, "baseline": {10_000: 0.8236}}
# Resizing leaves 0.1 % of the pixels to rounding, which changes the class of two images of 10,000 at most.
ROUNDING = 0.00021
CPU = Device("cpu", "asked for")


@pytest.fixture(scope="module")
def images():
    if not os.environ.get("CONVSWAP_DATA"):
        pytest.skip("CONVSWAP_DATA is not set, so the course checkpoint is not here")
    loaded = datasets.load("fashion-mnist", image_size=48)
    count = repeats(len(loaded.labels))
    return replace(loaded, images=loaded.images[:count], labels=loaded.labels[:count])


def classes(model, side, device, images) -> np.ndarray:
    session = make_session(model, side, device)
    batches = np.split(images.images, 20)
    return np.concatenate([run(session, {"image": batch})[0].argmax(axis=1) for batch in batches])


@pytest.fixture(scope="module", params=ACCURACIES)
def checkpoint(request, images):
    """The name, the model, and the classes that the default CPU provider predicts."""
    folder = Path(os.environ["CONVSWAP_DATA"]) / "ece408-2019sp"
    model = read_mxnet(folder / f"{request.param}-symbol.json", folder / f"{request.param}-0002.params", 48)
    return request.param, model, classes(model, DEFAULT, CPU, images)


def test_default_side_has_the_published_accuracy(checkpoint, images):
    name, _, predicted = checkpoint
    for count, accuracy in ACCURACIES[name].items():
        right = predicted[:count] == images.labels[:count]
        assert np.mean(right) == pytest.approx(accuracy, abs=ROUNDING if count == 10_000 else 1e-9)


def test_our_op_on_the_cpu_names_the_same_classes(checkpoint, images):
    _, model, predicted = checkpoint
    swapped = ir.to_proto(swap(model).model)
    np.testing.assert_array_equal(classes(swapped, CONVSWAP, CPU, images), predicted)


@pytest.mark.gpu
def test_our_op_on_the_card_names_the_same_classes_in_ieee_and_nearly_all_in_tf32(checkpoint, images):
    name, model, predicted = checkpoint
    card = Device("cuda", "asked for")
    ieee = ir.to_proto(swap(model, precision="ieee").model)
    np.testing.assert_array_equal(classes(ieee, CONVSWAP_IEEE, card, images), predicted)
    # In TF32 near ties may be decided either way.
    tf32 = classes(ir.to_proto(swap(model).model), CONVSWAP, card, images)
    assert np.sum(tf32 != predicted) <= 5
    if len(images.labels) == 10_000:
        assert np.mean(tf32 == images.labels) == pytest.approx(ACCURACIES[name][10_000], abs=ROUNDING)
