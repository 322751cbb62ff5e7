"""Exported networks are valid ONNX models, compute their definitions, and name their data."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from importlib import resources

import numpy as np
import onnx
import onnxruntime
import pytest
from build_tools import REPOSITORY
from convswap import export
from convswap.data import datasets
from convswap.errors import ConvswapError
from convswap.export import fitting
from convswap.export.fitting import LOGIT_SCALES, REGULARISATIONS, fit_last_layer
from convswap.models import (
    NETWORKS,
    Activation,
    Convolution,
    Flatten,
    FullyConnected,
    MaxPool,
    Softmax,
    find,
    packaged_weights,
    place,
    seeded_weights,
)
from numpy_forward import convolve, dense, pool, softmax

# The table of required accuracies.
TABLE = REPOSITORY / "models" / "README.md"
ROW = re.compile(r"\| `(.+?)` \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \| (\w+) \| `(.+?)` \|")


@dataclass(frozen=True)
class TableRow:
    """A row of the table.

    Top-1 accuracy on 10,000 test images, ours and the course's, file size, device and command.
    """

    accuracy: float
    course: float
    size: int
    device: str
    command: str


ROWS = {
    row[1]: TableRow(float(row[2]), float(row[3]), int(row[4].replace(",", "")), row[5], row[6])
    for row in map(ROW.fullmatch, TABLE.read_text(encoding="utf-8").splitlines())
    if row
}
# The original function; other tests get its cached results.
FITS = export._export_fitted
needs_fashion_mnist = pytest.mark.skipif(
    not os.environ.get("CONVSWAP_DATA"), reason="CONVSWAP_DATA names no folder with Fashion-MNIST"
)


def run(model, images):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    chunks = [images[start : start + 250] for start in range(0, len(images), 250)]
    return np.concatenate([session.run(["probabilities"], {"image": chunk})[0] for chunk in chunks])


def accuracy(model, data):
    return float(np.mean(run(model, data.images).argmax(axis=1) == data.labels))


def forward(network, weights, images):
    """Run the definition of `network` in float64."""
    value = images.astype(np.float64)
    for placed in place(network):
        match placed.layer:
            case Convolution():
                value = convolve(value, weights[f"{placed.name}.weight"])
            case Activation(function="tanh"):
                value = np.tanh(value)
            case Activation(function="relu"):
                value = np.maximum(value, 0)
            case MaxPool(kernel=kernel, ceil=ceil):
                value = pool(value, (kernel, kernel), (kernel, kernel), ceil=ceil)
            case Flatten():
                value = value.reshape(len(value), -1)
            case FullyConnected():
                value = dense(value, weights[f"{placed.name}.weight"], weights[f"{placed.name}.bias"])
            case Softmax():
                value = softmax(value)
    return value


@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_network_computes_its_definition(name):
    network = find(name)
    weights = packaged_weights(network).arrays
    images = datasets.load("synthetic", images=3, image_size=network.image_size).images
    model = export.export_network(name)
    # float32 sums of up to 20,184 products, through two tanh, on probabilities up to 1.
    np.testing.assert_allclose(run(model, images), forward(network, weights, images), atol=2e-4)
    np.testing.assert_allclose(run(model, images[:1]), run(model, images)[:1], atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_network_states_its_versions_shapes_names_and_data(name):
    network = find(name)
    model = export.export_network(name)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.producer_name) == (9, "convswap")
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 20)]
    (image,), (probabilities,) = model.graph.input, model.graph.output
    size = network.image_size
    assert (image.name, _shape(image)) == ("image", ["batch", 1, size, size])
    assert (probabilities.name, _shape(probabilities)) == ("probabilities", ["batch", 10])
    assert [node.name for node in model.graph.node] == [placed.name for placed in place(network)]
    inferred = {value.name: _shape(value) for value in model.graph.value_info}
    for node, placed in zip(model.graph.node[:-1], place(network), strict=False):
        assert inferred[node.output[0]] == ["batch", *placed.output_shape]
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties["convswap.network"] == name
    assert properties["convswap.dataset"] == "fashion-mnist"


def _shape(value):
    return [dimension.dim_param or dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


def test_exporting_twice_gives_the_same_bytes():
    first, second = (export.export_network("ece408-2020").SerializeToString() for _ in range(2))
    assert first == second


@pytest.mark.extended
@needs_fashion_mnist
@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_network_has_the_accuracy_that_is_stated(name):
    data = datasets.load("fashion-mnist", image_size=find(name).image_size)
    # Other processors sum in another order, which moves images that lie between two classes.
    assert accuracy(export.export_network(name), data) == pytest.approx(ROWS[name].accuracy, abs=5e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_trained_weights_are_as_good_as_they_have_to_be(name):
    row, provenance = ROWS[name], packaged_weights(find(name)).made
    assert row.course == find(name).course_accuracy[10_000]
    file = resources.files("convswap.models") / "weights" / f"{name}.trained.npz"
    assert row.size == len(file.read_bytes())
    assert (row.accuracy, row.device, row.command) == (
        provenance["test_accuracy"],
        provenance["device"],
        provenance["command"],
    )
    if name == "ece408-2017-low":
        # Weak on purpose, about as weak as the course's network.
        assert row.accuracy == pytest.approx(0.63, abs=0.02)
    else:
        assert row.accuracy >= (0.90 if name == "ece408-2017-high" else row.course)


def test_a_network_for_synthetic_data_is_fitted_without_files(monkeypatch):
    monkeypatch.delenv("CONVSWAP_DATA", raising=False)
    monkeypatch.setattr(export, "_export_fitted", FITS)
    progress = []
    model = export.export_network(
        "ece408-2017-high",
        data="synthetic",
        progress=lambda images_done, total: progress.append((images_done, total)),
    )
    assert progress[-1] == (export.FITTING_IMAGES, export.FITTING_IMAGES)
    assert [images_done for images_done, _ in progress] == sorted(images_done for images_done, _ in progress)
    data = datasets.load("synthetic", images=500)
    assert accuracy(model, data) > 0.9
    # Neither flat nor certain: the scale of the logits suits the data.
    assert 0.5 < run(model, data.images).max(axis=1).mean() < 0.999
    assert {"convswap.dataset": "synthetic"}.items() <= {
        entry.key: entry.value for entry in model.metadata_props
    }.items()


def test_unknown_networks_and_data_are_refused():
    with pytest.raises(ConvswapError, match="unknown network 'ece408-2021'"):
        export.export_network("ece408-2021")
    with pytest.raises(ConvswapError, match="did you mean 'synthetic'"):
        export.export_network("ece408-2020", data="syntetic")


def test_data_without_labels_cannot_be_fitted():
    network = find("ece408-2017-low")
    data = datasets.Dataset("unlabelled", np.zeros((4, 1, 28, 28), np.float32), None, ())
    with pytest.raises(ConvswapError, match="cannot be fitted to unlabelled: expected two labelled images"):
        fitting.fit_to(network, seeded_weights(network), data)


def test_a_saved_model_loads_as_it_was(tmp_path):
    model = export.export_network("ece408-2020")
    export.save(model, tmp_path / "model.onnx")
    loaded = onnx.load(tmp_path / "model.onnx")
    assert (loaded.ir_version, loaded.opset_import[0].version) == (9, 20)
    assert {entry.key for entry in loaded.metadata_props} == {entry.key for entry in model.metadata_props}
    images = datasets.load("synthetic", images=2, image_size=86).images
    np.testing.assert_array_equal(run(loaded, images), run(model, images))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("place_to_write", ["missing/model.onnx", "."])
def test_a_place_that_cannot_be_written_is_refused_and_left_alone(tmp_path, place_to_write):
    with pytest.raises(ConvswapError, match="cannot write"):
        export.save(export.export_network("ece408-2020"), tmp_path / place_to_write)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def clusters():
    """Ten overlapping clusters with features of very different sizes, one of them constant."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 10, 1200)
    features = random.normal(size=(10, 30))[labels] + random.normal(size=(1200, 30)) * 1.5
    features = features * 10.0 ** random.uniform(-3, 3, 30) + 5.0
    features[:, 7] = 3.0
    return features.astype(np.float32), labels


def test_the_fit_solves_the_ridge_problem(clusters):
    features, labels = clusters[0][:1000], clusters[1][:1000]
    fit = fit_last_layer([(features, labels)], (clusters[0][1000:], clusters[1][1000:]), 10)
    # Independent reference: the same minimum as a least-squares problem with extra rows sqrt(n λ) I.
    wide = features.astype(np.float64)
    mean, deviation = wide.mean(axis=0), wide.std(axis=0)
    deviation[7] = 1.0
    targets = np.eye(10)[labels]
    rows = np.vstack([(wide - mean) / deviation, np.sqrt(1000 * fit.regularisation) * np.eye(30)])
    aims = np.vstack([targets - targets.mean(axis=0), np.zeros((30, 10))])
    coefficients = np.linalg.lstsq(rows, aims, rcond=None)[0]
    expected = ((wide - mean) / deviation) @ coefficients + targets.mean(axis=0)
    actual = wide @ fit.weight.T.astype(np.float64) + fit.bias
    # Weights and bias are rounded to float32, and cancel if a feature's mean is far above its deviation.
    np.testing.assert_allclose(actual / fit.logit_scale, expected, atol=1e-3)
    assert fit.regularisation in REGULARISATIONS
    assert fit.logit_scale in LOGIT_SCALES


def test_the_fit_does_not_depend_on_how_the_images_are_cut(clusters):
    features, labels = clusters
    held_out = (features[1000:], labels[1000:])
    at_once = fit_last_layer([(features[:1000], labels[:1000])], held_out, 10)
    bounds = [0, 1, 400, 1000]
    parts = [(features[a:b], labels[a:b]) for a, b in itertools.pairwise(bounds)]
    in_parts = fit_last_layer(parts, held_out, 10)
    # Float64 sums in another order differ by rounding, which the worst conditioned feature multiplies by 1e6.
    np.testing.assert_allclose(
        in_parts.weight, at_once.weight, rtol=1e-5, atol=1e-7 * np.abs(at_once.weight).max()
    )


def test_the_regularisation_is_the_best_on_held_out_images():
    # Fewer images than features: without much regularisation the fit follows the noise.
    random = np.random.default_rng(8)
    labels = random.integers(0, 10, 2060)
    features = (np.eye(10, 80)[labels] + random.normal(size=(2060, 80)) * 0.5).astype(np.float32)
    fit = fit_last_layer([(features[:60], labels[:60])], (features[60:], labels[60:]), 10)
    logits = features[60:] @ fit.weight.T + fit.bias
    assert np.mean(logits.argmax(axis=1) == labels[60:]) == pytest.approx(fit.held_out_accuracy, abs=1e-3)
    assert fit.regularisation >= 0.1
