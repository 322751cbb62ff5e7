"""`convswap evaluate` gives the counts of a plain loop, and refuses what it cannot evaluate in one line."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from command_line import refusal
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.evaluation import embedded, evaluate, samples
from convswap.evaluation.normaliser import session_normaliser
from convswap.runtime.device import choose_device
from image_data import classifier, write_images, write_parquet
from PIL import Image
from swap_models import text_model, weights

MEAN, STD = np.reshape((0.485, 0.456, 0.406), (3, 1, 1)), np.reshape((0.229, 0.224, 0.225), (3, 1, 1))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Make a block of two batches of 4."""
    monkeypatch.setattr(evaluate, "_BLOCK_SAMPLES", 8)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "photos")


def run(data, model=None, **options):
    options = {"device": "cpu", "batch": 4, "processes": 0} | options
    result = evaluate.evaluate(model or classifier(), data, **options).to_json()
    return json.loads(json.dumps(result, allow_nan=False))


def same(result):
    """Return what must not depend on earlier runs."""
    return {key: value for key, value in result.items() if key != "run"}


def framed(path, imagenets):
    """Return the pixels as torchvision's Resize and CenterCrop frame them, or resized to 16x16."""
    image = Image.open(path).convert("RGB")
    if not imagenets:
        return np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)) / 255
    short, long = sorted(image.size)
    sizes = {short: 18, long: int(18 * long / short)}
    image = image.resize([sizes[side] for side in image.size], Image.Resampling.BILINEAR)
    left, top = (round((side - 16) / 2.0) for side in image.size)
    return np.asarray(image.crop((left, top, left + 16, top + 16))) / 255


@pytest.mark.parametrize("preprocess", ["none", "imagenet"])
def test_counts_are_those_of_a_plain_loop(images, preprocess):
    found, files = run(images, preprocess=preprocess), sorted(images.rglob("*.png"))
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(classifier().SerializeToString(), providers=providers)
    top1 = top5 = 0
    for file in files:
        pixels = framed(file, preprocess == "imagenet").transpose(2, 0, 1)
        pixels = (pixels - MEAN) / STD if preprocess == "imagenet" else pixels
        order = np.argsort(-session.run(None, {"x": pixels[None].astype(np.float32)})[0][0])
        label = int(file.parent.name.split()[1])
        top1, top5 = top1 + int(order[0] == label), top5 + int(label in order[:5])
    sides = {f"{side}_top{top}": n for side in ("default", "convswap") for top, n in ((1, top1), (5, top5))}
    assert found["counts"] == {"samples": 30, "agreeing": 30, "without_class": 0} | sides
    assert found["top1_accuracy"] == dict.fromkeys(("default", "convswap"), top1 / 30)
    assert 0 < top1 < top5 < 30 and found["top1_agreement"] == 1
    assert len(found["largest_differences"]) == 20
    assert all(0 < item["difference"] < 1e-4 for item in found["largest_differences"])


@pytest.mark.parametrize("kind", ["float32", "float16", "int64", "uint8"])
def test_pixels_become_the_values_of_the_table_to_the_bit(kind, device):
    random = np.random.default_rng(5)
    table = random.uniform(0, 99, (3, 256)).astype(kind)
    pixels = random.integers(0, 256, (4, 3, 5, 6), np.uint8)
    found = session_normaliser(table, choose_device(device), 0)(pixels).numpy()
    expected = table[[[[0]], [[1]], [[2]]], pixels]
    assert found.dtype == kind and found.tobytes() == expected.tobytes()


def test_both_sides_read_the_same_values(images, monkeypatch):
    expected, read, real = same(run(images)), [], embedded.run_named

    def run_named(session, feeds):
        read.append(feeds["x"])
        return real(session, feeds)

    monkeypatch.setattr(embedded, "run_named", run_named)
    monkeypatch.setattr(embedded, "normaliser", session_normaliser)
    assert same(run(images)) == expected
    assert len(read) == 16 and len(set(map(id, read))) == 8


def test_labels_of_files_and_both_kinds_of_columns_give_the_same(images, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[evaluate]'")
    files = sorted(images.rglob("*.png"))
    lines = [file.parent.name.split()[1] for file in files]
    (tmp_path / "numbers.txt").write_text("\n".join(lines))
    names = [f"{file.relative_to(images)},{label}" for file, label in zip(files, lines, strict=True)]
    (tmp_path / "names.csv").write_text("\n".join(reversed(names)))
    (tmp_path / "shards").mkdir()
    write_parquet(tmp_path / "shards" / "1.parquet", files[:11], True, rows=3)
    write_parquet(tmp_path / "shards" / "2.parquet", files[11:], True, rows=50)
    write_parquet(tmp_path / "bytes.parquet", files, False, rows=7)
    expected = run(images)
    for found in (
        run(images, labels=tmp_path / "numbers.txt"),
        run(images, labels=tmp_path / "names.csv"),
        run(tmp_path / "bytes.parquet"),
        run(tmp_path / "shards", labels="label"),
    ):
        assert found["counts"] == expected["counts"]
        found_items, expected_items = (
            [item | {"name": ""} for item in result["largest_differences"]] for result in (found, expected)
        )
        assert found_items == expected_items


def test_named_data_sets_and_a_padded_last_batch(images):
    counts = []
    for batch in ("n", 4):
        model = text_model(
            "a = Conv (x, w) p = GlobalAveragePool (a) y = Flatten (p)",
            weights("w", 10, 1, 3, 3),
            inputs=f"float[{batch}, 1, 28, 28] x",
            outputs=f"float[{batch}, 10] y",
        )
        counts += [run(data, model, images=9)["counts"] for data in ("synthetic", images)]
    assert counts[:2] == counts[2:] and counts[0]["samples"] == 9
    random = run("random", images=11)
    assert random["top1_accuracy"] == {"default": None, "convswap": None} and random["images"] == 11


def test_an_interrupted_evaluation_computes_only_the_missing_blocks(images, tmp_path, monkeypatch):
    whole, computed, real = run(images), [], embedded.Job.record

    def record(self, block, *arguments):
        computed.append(block.number)
        return real(self, block, *arguments)

    def interrupt(_):
        if len(computed) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(embedded.Job, "record", record)
    with pytest.raises(KeyboardInterrupt):
        run(images, resume=tmp_path, progress=interrupt)
    resumed = run(images, resume=tmp_path)
    assert sorted(computed) == [0, 1, 2, 3] and resumed["run"]["kept_blocks"] == 2
    # A damaged file is as good as none.
    (tmp_path / "block-000001.json").write_text('{"counts": {')
    again = run(images, resume=tmp_path)
    assert computed[4:] == [1] and same(whole) == same(resumed) == same(again)
    assert run(images, resume=tmp_path)["run"]["images_per_second"] == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch": 8}, "batch 4, now 8"),
        ({"images": 20}, "images 30, now 20"),
        ({"preprocess": "imagenet"}, "preprocess none, now imagenet"),
        ({"mean": 0.5}, "normalisation "),
        ({"labels": "labels.txt"}, "labels "),
        ({"model": classifier(outputs="float[n, 7] y, float[n, 7, 14, 14] z")}, "model "),
    ],
)
def test_results_of_another_evaluation_are_refused(images, tmp_path, monkeypatch, change, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.txt").write_text("1\n" * 30)
    run(images, resume="kept")
    with pytest.raises(ConvswapError, match=f"'kept' has results of another evaluation: {named}"):
        run(images, resume="kept", **change)
    with pytest.raises(ConvswapError, match=r"cannot keep results in '.': No such file"):
        run(images, resume=".")


def test_blocks_in_memory_are_limited(images, monkeypatch):
    taken, in_memory, real_parts, real_record = [], [], samples.EncodedImages, embedded.Job.record

    def part(*arguments):
        taken.append(arguments)
        return real_parts(*arguments)

    def record(self, *arguments):
        in_memory.append(len(taken) - len(in_memory))
        return real_record(self, *arguments)

    monkeypatch.setattr(samples, "EncodedImages", part)
    monkeypatch.setattr(embedded.Job, "record", record)
    monkeypatch.setattr(evaluate, "_BLOCK_SAMPLES", 1)
    run(images, batch=1)
    assert len(in_memory) == 30 and max(in_memory) <= 3


def test_the_command_writes_json_and_a_page_with_the_contact_sheet(images, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, so nothing can be drawn")
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "model.onnx")
    options = ["--data", str(images), "--device", "cpu", "--processes", "0", "--fuse"]
    assert main(["evaluate", "model.onnx", *options, "--json", "a.json", "--html", "a.html"]) == 0
    captured = capsys.readouterr()
    assert "The sides name the same class for 30 of 30 images, 100 %." in captured.out
    assert "evaluated 30 of 30 images" in captured.err
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["options"]["fuse"] is True and written["run"]["images_per_second"] > 0
    page = (tmp_path / "a.html").read_text()
    assert '<img alt="The 20 images on which the sides differ most" src="data:image/png;base64,' in page
    assert "class 3" in page and written["largest_differences"][19]["name"] in page


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--data nowhere", "there is no data 'nowhere'; give a folder of images, a Parquet file"),
        ("--data empty", "folder 'empty' has no images; expected files .png"),
        ("--data mixed", "has images in folders and beside them, such as outside.png; move all into"),
        ("--data broken", "cannot read the inputs 'broken/b.jpg'"),
        ("--data model.onnx", "'model.onnx' is no Parquet file"),
        ("--data no.parquet", "cannot read the inputs 'no.parquet'"),
        ("--labels three.txt", "labels 'three.txt' are 3, but there are 4 images; give one for each"),
        ("--labels words.txt", "labels 'words.txt': line 3 is 'one'; expected an integer in each line"),
        ("--labels names.txt", "no line for 3 of 4 images, such as class 0/002.png"),
        ("--labels high.txt", "sample 2 has label 7, but the model has 7 classes; expected labels from 0"),
        ("--labels none.txt", "cannot read the inputs 'none.txt': No such file"),
        ("--preprocess imagnet", "unknown preprocessing 'imagnet'; did you mean 'imagenet'?"),
        ("--preprocess imagenet --mean 1", "preprocess imagenet sets mean and std"),
        ("--data random --std 2", "data set random takes no labels, preprocess, mean, std or scale"),
        ("--images 5", "5 images were asked for, but 'good' has 4; ask for less"),
        ("--processes -1", "processes must be a whole number from 0 on, but -1 was given"),
        ("--against all", "unknown choice of sides 'all'"),
        ("--resume three.txt", "cannot keep results in 'three.txt'"),
        ("--json three.txt --labels three.txt", "it is what --labels reads"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments, expected):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "good", 4, 2)
    write_images(tmp_path / "mixed", 2, 1)
    Image.new("RGB", (9, 9)).save("mixed/outside.png")
    for name in ("empty", "broken"):
        (tmp_path / name).mkdir()
    contents = {
        "broken/b.jpg": "\xff\xd8 no image",
        "three.txt": "0\n1\n2\n",
        "words.txt": "0\n1\none\n2\n",
        "high.txt": "0\n1\n7\n2\n",
        "names.txt": "class 0/000.png,1\n",
        "no.parquet": "PAR1 no table",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
    onnx.save(classifier(), "model.onnx")
    options = ["--data", "good", "--processes", "0", "--device", "cpu", *arguments.split()]
    assert expected in refusal(capsys, "evaluate", "model.onnx", *options)


def test_other_models_and_missing_packages_are_refused(images, tmp_path, monkeypatch):
    message = r"output 'z' has shape \[4, 7, 14, 14\]; expected scores \[batch, classes\] of a classifier"
    with pytest.raises(ConvswapError, match=message):
        run(images, classifier(outputs="float[n, 7, 14, 14] z"))
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConvswapError, match="pip install pyarrow"):
        run(tmp_path / "a.parquet")


def test_a_missing_ray_and_an_address_without_a_cluster_are_refused_in_one_line(capsys, monkeypatch):
    arguments = ("evaluate", "ece408-2019fa", "--data", "synthetic", "--ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "needs Ray, which is missing: pip install 'convswap[ray]'" in refusal(capsys, *arguments, "local")
    monkeypatch.setitem(sys.modules, "ray", object())
    assert "cannot connect to Ray at '127.0.0.1:1': Connection refused" in refusal(
        capsys, *arguments, "127.0.0.1:1"
    )
    assert "processes have no meaning beside ray" in refusal(capsys, *arguments, "local", "--processes", "2")
