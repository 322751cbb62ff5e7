"""The contact sheet shows the first images of the data with their predicted and true classes."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import refusal
from convswap.cli.main import main
from convswap.data import datasets
from convswap.errors import ConvswapError
from convswap.export import export_network, save
from convswap.graph.swap import swap
from convswap.inputs.predictions import Predictions, predict
from convswap.output.drawing import png
from op_sessions import onnx_outputs
from swap_models import make_model, tensor_info, weights

NETWORK = "ece408-2017-high"
needs_fashion_mnist = pytest.mark.skipif(
    not os.environ.get("CONVSWAP_DATA"), reason="CONVSWAP_DATA names no folder with Fashion-MNIST"
)


@pytest.fixture
def drawing():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, so nothing can be drawn")
    from convswap.inputs import predictions

    return predictions


def example(count=12, size=4, **changes):
    random = np.random.default_rng(6)
    fields = {
        "model": "a/folder/$net_1$.onnx",
        "dataset": "fashion-mnist",
        "images": random.integers(0, 256, (count, size, size)).astype(np.float32),
        "predicted": np.arange(count) % 10,
        "labels": np.where(np.arange(count) == 3, 6, np.arange(count) % 10),
        "class_names": datasets.FASHION_MNIST_CLASSES,
    }
    return Predictions(**(fields | changes))


def test_predictions_are_those_of_the_model_on_the_first_images():
    predictions = predict(NETWORK, data="synthetic", images=7)
    data = datasets.load("synthetic", images=7)
    model = export_network(NETWORK, data="synthetic")
    np.testing.assert_array_equal(
        predictions.predicted, onnx_outputs(model, {"image": data.images})[0].argmax(axis=1)
    )
    np.testing.assert_array_equal(predictions.labels, data.labels)
    np.testing.assert_array_equal(predictions.images, data.images[:, 0])
    assert (predictions.model, predictions.dataset, predictions.class_names) == (
        NETWORK,
        "synthetic",
        data.class_names,
    )
    assert predictions.correct == np.sum(predictions.predicted == data.labels) > 3


@needs_fashion_mnist
def test_fashion_mnist_is_named_by_its_own_classes():
    predictions = predict(NETWORK, images=10)
    names = [predictions.class_names[label] for label in predictions.labels]
    # The first ten labels of the official test split: 9 2 1 1 6 1 4 6 5 7.
    assert names == [
        "Ankle boot", "Pullover", "Trouser", "Trouser", "Shirt",
        "Trouser", "Coat", "Shirt", "Sandal", "Sneaker",
    ]  # fmt: skip
    assert predictions.images.shape == (10, 28, 28)
    assert predictions.correct >= 7


def test_a_swapped_model_from_a_file_predicts_with_onnx_convs(tmp_path):
    path = tmp_path / "swapped.onnx"
    swap(export_network("ece408-2020")).save(path)
    predictions = predict(str(path), data="synthetic", images=2)
    assert (predictions.dataset, predictions.images.shape) == ("synthetic", (2, 86, 86))


def test_each_image_has_its_predicted_and_its_true_class(drawing):
    predictions = example()
    texts = [text.get_text() for text in drawing.draw(predictions).axes[0].texts]
    assert texts[0] == "fashion-mnist by $net_1$.onnx: 11 of 12 named right"
    assert texts[1::2][:4] == ["✓ T-shirt/top", "✓ Trouser", "✓ Pullover", "✗ Dress"]
    assert texts[2::2][:4] == ["true: T-shirt/top", "true: Trouser", "true: Pullover", "true: Shirt"]
    assert len(texts) == 1 + 2 * 12


@pytest.mark.parametrize("count", [1, 10, 11, 30])
def test_the_picture_holds_every_image_in_order_and_none_over_another(drawing, count):
    from matplotlib import image as matplotlib_image

    predictions = example(count)
    figure = drawing.draw(predictions)
    content = png(figure)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    picture = matplotlib_image.imread(io.BytesIO(content), format="png")
    height, width = picture.shape[:2]
    boxes = [artist.get_window_extent() for artist in figure.axes[0].images]
    assert len(boxes) == count
    for box, image in zip(boxes, predictions.images, strict=True):
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
        # The centre of each pixel of the image, rows from the top.
        columns = (box.x0 + (np.arange(4) + 0.5) * box.width / 4).astype(int)
        rows = (height - box.y1 + (np.arange(4) + 0.5) * box.height / 4).astype(int)
        pixels = picture[np.ix_(rows, columns)][..., 0] * 255
        # The colour map has 256 steps.
        np.testing.assert_allclose(pixels, image, atol=1.01)
    order = [(-round(box.y0), round(box.x0)) for box in boxes]
    assert order == sorted(order) and len({row for row, _ in order}) == -(-count // 10)


def test_texts_stay_within_the_picture_and_do_not_overlap(drawing):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    predictions = example(20, labels=np.zeros(20, int), predicted=np.full(20, 9))
    figure = drawing.draw(predictions)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    boxes += [image.get_window_extent() for image in figure.axes[0].images]
    for index, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 and box.y1 <= figure.bbox.height
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


@pytest.mark.extended
def test_the_command_draws_the_sheet_and_says_how_many_are_right(drawing, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "show", "--data", "synthetic", "--images", "12"]) == 0
    right = predict(NETWORK, data="synthetic", images=12).correct
    assert capsys.readouterr().out == f"synthetic.png: {right} of 12 named right by {NETWORK}\n"
    assert main(["data", "show", "--data", "synthetic", "--images", "12", "-o", "sheet.PNG"]) == 0
    assert Path("sheet.PNG").read_bytes() == Path("synthetic.png").read_bytes()
    assert Path("sheet.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--images", "0"], "images must be at least 1, but 0"),
        (["--images", "501"], "501 images were asked for; a contact sheet shows at most 500"),
        (["--images", "x"], "'x'"),
        (["--data", "random"], "data set random has no labels; use --data fashion-mnist"),
        (["--data", "sinthetic"], "did you mean 'synthetic'"),
        (["--model", "ece408-2017"], "did you mean 'ece408-2017-"),
        (["-o", "sheet.jpg"], "'sheet.jpg': a contact sheet is a PNG; name a .png file"),
        (["-o", "nowhere/sheet.png"], "there is no folder 'nowhere'"),
        (["--model", "other.onnx"], "data set random has no labels"),
        (["--model", "other.onnx", "--data", "synthetic"], "needs a model with one floating-point input"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments, expected):
    monkeypatch.chdir(tmp_path)
    from onnx import helper

    save(
        make_model(
            [helper.make_node("Conv", ["x", "w1"], ["y"])],
            [weights("w1", 2, 3, 3, 3)],
            inputs=[tensor_info("x", "n", 3, 8, 8)],
        ),
        "other.onnx",
    )
    assert expected in refusal(capsys, "data", "show", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["other.onnx"]


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in refusal(capsys, "data", "show", "--data", "synthetic", "--images", "1")
    assert not list(tmp_path.iterdir())


def test_more_images_than_fit_are_refused_by_the_drawing_too(drawing):
    with pytest.raises(ConvswapError, match="at most 500"):
        drawing.draw(example(501, size=1))
