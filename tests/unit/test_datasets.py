"""Data sets: the search for files, the idx format, the course's resizing, and the synthetic set."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import struct
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from convswap.data import datasets, synthetic
from convswap.data.fetch import PinnedFile
from convswap.data.images import interpolation_weights, read_idx, resize_as_the_course
from convswap.errors import ConvswapError
from data_server import serving
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

REAL_DATA = os.environ.get("CONVSWAP_DATA")
needs_fashion_mnist = pytest.mark.skipif(
    not (REAL_DATA and (Path(REAL_DATA) / "fashion-mnist").is_dir()),
    reason="CONVSWAP_DATA names no folder that holds fashion-mnist",
)

SMALL_PIXELS = np.random.default_rng(1).integers(0, 256, (20, 28, 28), np.uint8)
SMALL_LABELS = np.arange(20, dtype=np.uint8) % 10


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def compressed(content: bytes) -> bytes:
    """Return the content gzipped without a time stamp: test ids contain it."""
    return gzip.compress(content, mtime=0)


def idx_gz(array: np.ndarray) -> bytes:
    return compressed(idx_bytes(array))


SMALL_FILES = {"pixels.gz": idx_gz(SMALL_PIXELS), "labels.gz": idx_gz(SMALL_LABELS)}


@pytest.fixture
def small_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Replace Fashion-MNIST's test split by 20 images, with an empty cache; return the cache's folder."""
    pixels, labels = (
        PinnedFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in SMALL_FILES.items()
    )
    monkeypatch.setitem(datasets.FASHION_MNIST, "test", datasets.FashionMnistSplit(pixels, labels, 20))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CONVSWAP_DATA", raising=False)
    return tmp_path / "cache" / "convswap" / "fashion-mnist"


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set CONVSWAP_DATA to a folder with the small set's files; return the folder of the files."""
    monkeypatch.setenv("CONVSWAP_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, content in SMALL_FILES.items():
        (folder / name).write_bytes(content)
    return folder


def assert_is_small_set(loaded: datasets.Dataset) -> None:
    assert loaded.name == "fashion-mnist"
    assert loaded.images.dtype == np.float32
    assert loaded.labels is not None and loaded.labels.dtype == np.int64
    np.testing.assert_array_equal(loaded.images, SMALL_PIXELS[:, np.newaxis])
    np.testing.assert_array_equal(loaded.labels, SMALL_LABELS)
    assert loaded.class_names[9] == "Ankle boot"


def test_files_in_the_data_folder_are_used_without_the_network(small_set: Path, data_folder: Path) -> None:
    assert datasets.available("fashion-mnist")
    with serving(SMALL_FILES, ["serve"]) as server:
        assert_is_small_set(datasets.load("fashion-mnist", base_url=server.home))
        assert server.names == []
    assert not small_set.exists()


@pytest.mark.parametrize("data_variable", [None, "", "/nonexistent"])
def test_without_a_data_folder_files_are_downloaded_once_into_the_cache(
    small_set: Path, monkeypatch: pytest.MonkeyPatch, data_variable: str | None
) -> None:
    if data_variable is not None:
        monkeypatch.setenv("CONVSWAP_DATA", data_variable)
    monkeypatch.chdir(small_set.parents[2])
    assert not datasets.available("fashion-mnist")
    with serving(SMALL_FILES, ["serve"]) as server:
        assert_is_small_set(datasets.load("fashion-mnist", base_url=server.home))
        assert datasets.available("fashion-mnist")
        assert_is_small_set(datasets.load("fashion-mnist", base_url=server.home))
        assert server.names == ["pixels.gz", "labels.gz"]
    assert (small_set / "pixels.gz").read_bytes() == SMALL_FILES["pixels.gz"]


def test_an_empty_data_variable_does_not_mean_the_working_folder(
    small_set: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data_folder.parent)
    monkeypatch.setenv("CONVSWAP_DATA", "")
    assert not datasets.available("fashion-mnist")


def test_a_file_that_the_data_folder_lacks_comes_from_the_cache(small_set: Path, data_folder: Path) -> None:
    small_set.mkdir(parents=True)
    (data_folder / "labels.gz").rename(small_set / "labels.gz")
    assert datasets.available("fashion-mnist")
    assert_is_small_set(datasets.load("fashion-mnist", base_url="http://127.0.0.1:9/"))


@pytest.mark.parametrize("damage", ["truncated", "altered", "longer", "empty"])
def test_a_damaged_file_in_the_data_folder_is_named_with_both_hashes(
    small_set: Path, data_folder: Path, damage: str
) -> None:
    intact = SMALL_FILES["pixels.gz"]
    content = {
        "truncated": intact[:-100],
        "altered": intact[:-1] + b"?",
        "longer": intact + b"?",
        "empty": b"",
    }[damage]
    (data_folder / "pixels.gz").write_bytes(content)
    with refused() as caught:
        datasets.load("fashion-mnist", base_url="http://127.0.0.1:9/")
    message = str(caught.value)
    assert str(data_folder / "pixels.gz") in message
    assert hashlib.sha256(content).hexdigest() in message
    assert hashlib.sha256(intact).hexdigest() in message
    assert "unset CONVSWAP_DATA" in message
    assert datasets.available("fashion-mnist"), "or a comparison would silently take other data"


def test_a_folder_in_the_place_of_a_data_file_is_named(small_set: Path, data_folder: Path) -> None:
    (data_folder / "pixels.gz").unlink()
    (data_folder / "pixels.gz").mkdir()
    with pytest.raises(ConvswapError, match=r"cannot read .*pixels\.gz: Is a directory"):
        datasets.load("fashion-mnist")


@pytest.mark.parametrize("content", [SMALL_FILES["labels.gz"][:-3], SMALL_FILES["labels.gz"] + b"?", b""])
def test_a_damaged_file_in_the_cache_is_downloaded_anew(small_set: Path, content: bytes) -> None:
    small_set.mkdir(parents=True)
    (small_set / "pixels.gz").write_bytes(SMALL_FILES["pixels.gz"])
    (small_set / "labels.gz").write_bytes(content)
    assert not datasets.available("fashion-mnist")
    with serving(SMALL_FILES, ["serve"]) as server:
        assert_is_small_set(datasets.load("fashion-mnist", base_url=server.home))
        assert server.names == ["labels.gz"]


def test_offline_is_one_line_that_says_where_to_put_the_files(small_set: Path) -> None:
    with refused() as caught:
        datasets.load("fashion-mnist", base_url="http://no-such-host.invalid/here/")
    message = str(caught.value)
    assert "http://no-such-host.invalid/here/pixels.gz" in message
    assert str(small_set) in message
    assert "--data synthetic" in message


def test_a_relative_cache_variable_is_ignored_in_favour_of_the_home_folder(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with serving(SMALL_FILES, ["serve"]) as server:
        datasets.load("fashion-mnist", base_url=server.home)
    assert (tmp_path / "home" / ".cache" / "convswap" / "fashion-mnist" / "labels.gz").is_file()
    assert not (tmp_path / "relative").exists()


def test_the_first_images_are_loaded(small_set: Path, data_folder: Path) -> None:
    loaded = datasets.load("fashion-mnist", images=3, image_size=33)
    assert loaded.images.shape == (3, 1, 33, 33)
    np.testing.assert_array_equal(loaded.images, datasets.load("fashion-mnist", image_size=33).images[:3])
    np.testing.assert_array_equal(loaded.labels, SMALL_LABELS[:3])


@pytest.mark.parametrize(("name", "known"), [("fashion-mnist", 10_000), ("synthetic", 10_000)])
@pytest.mark.parametrize("images", [0, -1, 10_001])
def test_a_number_of_images_out_of_range_is_named_before_anything_is_read(
    name: str, known: int, images: int
) -> None:
    expected = (
        f"^{images} images were asked for; the test split of {name} has {known}, so ask for 1 to {known}$"
    )
    with pytest.raises(ConvswapError, match=expected):
        datasets.load(name, images=images, base_url="http://127.0.0.1:9/")


@pytest.mark.parametrize("image_size", [0, -28, 4097])
def test_an_image_size_out_of_range_is_named(image_size: int) -> None:
    with pytest.raises(ConvswapError, match=f"image size {image_size} is out of range; choose 1 to 4096"):
        datasets.load("synthetic", images=1, image_size=image_size)


def test_images_that_do_not_fit_in_memory_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_memory_error(originals: np.ndarray, image_size: int) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(datasets, "resize_as_the_course", raise_memory_error)
    with pytest.raises(ConvswapError, match=r"1000 images of 4096x4096 do not fit in memory \(67\.1 GB\)"):
        datasets.load("synthetic", images=1000, image_size=4096)


def test_an_unknown_data_set_or_split_names_the_nearest() -> None:
    with pytest.raises(ConvswapError, match="unknown data set 'fashion-minst'; did you mean 'fashion-mnist'"):
        datasets.load("fashion-minst")
    with pytest.raises(ConvswapError, match="unknown data set"):
        datasets.available("mnist-of-old")
    with pytest.raises(ConvswapError, match="unknown split 'tests'; did you mean 'test'"):
        datasets.load("synthetic", split="tests")


@needs_fashion_mnist
@pytest.mark.parametrize(
    ("split", "count", "first_labels"),
    [("test", 10_000, [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]), ("train", 60_000, [9, 0, 0, 3, 0, 2, 7, 2, 5, 5])],
)
def test_fashion_mnist_matches_its_pinned_hashes_and_is_balanced(
    split: str, count: int, first_labels: list[int]
) -> None:
    assert datasets.available("fashion-mnist", split)
    loaded = datasets.load("fashion-mnist", split=split)
    assert loaded.images.shape == (count, 1, 28, 28)
    assert (loaded.images.min(), loaded.images.max()) == (0, 255)
    assert loaded.labels is not None
    assert loaded.labels[:10].tolist() == first_labels
    assert np.bincount(loaded.labels).tolist() == [count // 10] * 10


@needs_fashion_mnist
def test_fashion_mnist_resized_is_the_rounded_formula_but_for_its_rounding_noise() -> None:
    """In float64, as in scikit-image, rounding noise changes 0.1 % of the pixels, each by one."""
    originals = datasets.load("fashion-mnist", images=500).images[:, 0] / np.float64(256)
    resized = datasets.load("fashion-mnist", images=500, image_size=48).images[:, 0]
    coordinate = 28 / 48 * (np.arange(48) + 0.5) - 0.5
    first = np.floor(coordinate).astype(int)
    fraction = coordinate - first
    padded = np.pad(originals, ((0, 0), (1, 1), (1, 1)))
    rows = (1 - fraction)[:, None] * padded[:, first + 1] + fraction[:, None] * padded[:, first + 2]
    sampled = (1 - fraction) * rows[:, :, first + 1] + fraction * rows[:, :, first + 2]
    expected = np.trunc(np.clip(sampled, 0, originals.max(axis=(1, 2), keepdims=True)) * 256)
    assert np.abs(resized - expected).max() <= 1
    assert np.mean(resized != expected) < 1e-3


def resized_slowly(image: np.ndarray, size: int) -> np.ndarray:
    """Evaluate the course's formula pixel by pixel in rational numbers."""
    source = len(image)

    def pixel(row: int, column: int) -> Fraction:
        inside = 0 <= row < source and 0 <= column < source
        return Fraction(int(image[row, column])) if inside else Fraction(0)

    def coordinate(i: int) -> Fraction:
        return Fraction(source, size) * (i + Fraction(1, 2)) - Fraction(1, 2)

    result = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            y, x = coordinate(i), coordinate(j)
            top, left = math.floor(y), math.floor(x)
            down, right = y - top, x - left
            value = (1 - down) * ((1 - right) * pixel(top, left) + right * pixel(top, left + 1))
            value += down * ((1 - right) * pixel(top + 1, left) + right * pixel(top + 1, left + 1))
            result[i, j] = math.floor(min(max(value, Fraction(int(image.min()))), Fraction(int(image.max()))))
    return result


@pytest.mark.parametrize("size", [1, 7, 27, 29, 48, 64, 86])
def test_resizing_is_the_course_s_formula_exactly(size: int) -> None:
    random = np.random.default_rng(size)
    images = np.stack(
        [
            random.integers(0, 256, (28, 28)),
            random.integers(100, 140, (28, 28)),
            np.full((28, 28), 255),
        ]
    ).astype(np.uint8)
    resized = resize_as_the_course(images, size)
    assert resized.dtype == np.float32
    assert resized.shape == (3, size, size)
    for image, result in zip(images, resized, strict=True):
        np.testing.assert_array_equal(result, resized_slowly(image, size))


def test_resizing_to_the_same_size_gives_the_originals() -> None:
    np.testing.assert_array_equal(resize_as_the_course(SMALL_PIXELS, 28), SMALL_PIXELS)


def test_resizing_in_chunks_gives_what_one_image_gives() -> None:
    images = np.random.default_rng(3).integers(0, 256, (700, 28, 28), np.uint8)
    resized = resize_as_the_course(images, 70)
    for index in (0, 427, 428, 429, 699):
        np.testing.assert_array_equal(resized[index], resize_as_the_course(images[index : index + 1], 70)[0])


def test_resizing_takes_little_memory_beside_its_result() -> None:
    images = np.zeros((2000, 28, 28), np.uint8)
    tracemalloc.start()
    resized = resize_as_the_course(images, 64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Chunks of 16 MiB and temporaries of matmul; all images at once would take over 100 MiB.
    assert peak - resized.nbytes < 4 * (16 << 20)


def test_weights_add_up_to_one_except_where_the_outside_counts() -> None:
    weights = interpolation_weights(28, 70)
    assert np.array_equal(weights.sum(axis=1)[1:-1], np.full(68, 140))
    # The first output pixel lies at 28/70 * 0.5 - 0.5 = -0.3, so 0.7 of it is pixel 0.
    assert weights[0, 0] == weights[-1, -1] == 0.7 * 140


def test_the_synthetic_set_is_the_same_everywhere() -> None:
    pixels, labels = synthetic.originals("test", 600)
    digest = hashlib.sha256(pixels.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    assert digest == "86ad47b4be4d62ad10751925523991f0fb1a533b9f362765076f56765b065e30"


@pytest.mark.parametrize("count", [1, 499, 500, 501])
def test_the_first_synthetic_images_do_not_depend_on_how_many_are_asked_for(count: int) -> None:
    few = datasets.load("synthetic", images=count, image_size=32)
    many = datasets.load("synthetic", images=1001, image_size=32)
    assert few.images.shape == (count, 1, 32, 32)
    assert few.labels is not None and many.labels is not None
    np.testing.assert_array_equal(few.images, many.images[:count])
    np.testing.assert_array_equal(few.labels, many.labels[:count])


def test_the_synthetic_splits_share_no_image() -> None:
    train = {image.tobytes() for image in synthetic.originals("train", 10_000)[0]}
    test = {image.tobytes() for image in synthetic.originals("test", 10_000)[0]}
    assert len(train) == len(test) == 10_000
    assert not train & test


def test_the_synthetic_set_needs_no_files(small_set: Path) -> None:
    assert datasets.available("synthetic")
    assert datasets.available("synthetic", "train")
    loaded = datasets.load("synthetic", images=2000, image_size=70)
    assert loaded.images.shape == (2000, 1, 70, 70)
    assert loaded.images.dtype == np.float32
    assert np.array_equal(loaded.images, np.trunc(loaded.images))
    assert (loaded.images.min(), loaded.images.max()) == (0, 255)
    assert loaded.labels is not None and loaded.labels.dtype == np.int64
    assert len(loaded.class_names) == 10
    assert np.bincount(loaded.labels, minlength=10).min() > 150
    assert not small_set.exists()


def test_a_linear_classifier_learns_the_synthetic_set_well_but_not_perfectly() -> None:
    """Ridge regression on the pixels, a lower bound for networks with a fitted last layer."""

    def features(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = synthetic.originals(split, count)
        return np.c_[pixels.reshape(count, -1) / 255 - 0.3, np.ones(count)], labels

    train, train_labels = features("train", 3000)
    test, test_labels = features("test", 2000)
    gram = train.T @ train
    gram[np.diag_indices_from(gram)] += 1e-2 * np.trace(gram) / len(gram)
    weights = np.linalg.solve(gram, train.T @ np.eye(10)[train_labels])
    accuracy = np.mean((test @ weights).argmax(axis=1) == test_labels)
    assert 0.85 < accuracy < 0.99


@pytest.mark.parametrize("array", [SMALL_PIXELS, SMALL_LABELS, np.empty((0, 28, 28), np.uint8)])
def test_an_idx_file_gives_back_its_array(array: np.ndarray) -> None:
    restored = read_idx(io.BytesIO(idx_gz(array)), "some.gz", array.shape)
    assert restored.dtype == np.uint8
    np.testing.assert_array_equal(restored, array)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (idx_bytes(SMALL_LABELS), r"its gzip stream cannot be read \(Not a gzipped file"),
        (b"", "its magic number is 0x, expected 0x00000801"),
        (idx_gz(SMALL_LABELS)[:-9], "its gzip stream is cut off"),
        (compressed(b"\x00\x00\x08\x01\x00"), "it ends inside its header of 8 bytes"),
        (idx_gz(SMALL_PIXELS), "its magic number is 0x00000803, expected 0x00000801"),
        (idx_gz(SMALL_LABELS[:19]), "its header states 19, expected 20"),
        (compressed(idx_bytes(SMALL_LABELS)[:-1]), "its header states 20 = 20 bytes but 19 follow"),
        (compressed(idx_bytes(SMALL_LABELS) + b"?"), "its header states 20 = 20 bytes and more follow"),
    ],
)
def test_a_damaged_idx_file_is_named_with_the_reason(content: bytes, reason: str) -> None:
    with refused(f"^some.gz is no intact idx file: {reason}"):
        read_idx(io.BytesIO(content), "some.gz", SMALL_LABELS.shape)


@pytest.mark.parametrize(
    ("size", "reason"), [(2**32 - 1, "4294967295, expected 20"), (20, "20 = 20 bytes and more follow")]
)
def test_a_file_that_unpacks_to_gigabytes_takes_no_memory(size: int, reason: str) -> None:
    start = compressed(struct.pack(">HBBI", 0, 8, 1, size))
    content = start + compressed(bytes(64 << 20)) * 40
    tracemalloc.start()
    with pytest.raises(ConvswapError, match=reason):
        read_idx(io.BytesIO(content), "some.gz", (20,))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@given(position=st.integers(0, len(SMALL_FILES["labels.gz"]) - 1), value=st.integers(0, 255))
def test_an_altered_idx_file_is_refused_or_read_right(position: int, value: int) -> None:
    altered = bytearray(SMALL_FILES["labels.gz"])
    altered[position] = value
    try:
        restored = read_idx(io.BytesIO(altered), "some.gz", SMALL_LABELS.shape)
    except ConvswapError:
        return
    np.testing.assert_array_equal(restored, SMALL_LABELS)


@pytest.mark.parametrize("cache", ["a file", "no home folder"])
def test_a_cache_that_cannot_be_written_costs_a_note_and_a_second_download(
    small_set: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: str
) -> None:
    if cache == "a file":
        small_set.parents[1].write_text("")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", no_home)
    assert not datasets.available("fashion-mnist")
    with serving(SMALL_FILES, ["serve"]) as server:
        assert_is_small_set(datasets.load("fashion-mnist", base_url=server.home))
        assert_is_small_set(datasets.load("fashion-mnist", base_url=server.home))
        assert server.names == ["pixels.gz", "labels.gz"] * 2
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("convswap: ")]
    assert len(notes) == 4 and all("for now it is downloaded each time" in line for line in notes)


def no_home() -> Path:
    raise RuntimeError("there is none")


def test_a_cached_file_that_cannot_be_read_is_downloaded_for_now(small_set: Path) -> None:
    (small_set / "pixels.gz").mkdir(parents=True)
    with serving(SMALL_FILES, ["serve"]) as server:
        assert_is_small_set(datasets.load("fashion-mnist", base_url=server.home))


def test_a_download_without_a_cache_names_the_folder_to_put_files_into(small_set: Path) -> None:
    small_set.parents[1].write_text("")
    with pytest.raises(ConvswapError, match=r"into \$CONVSWAP_DATA/fashion-mnist by hand"):
        datasets.load("fashion-mnist", base_url="http://127.0.0.1:9/")
