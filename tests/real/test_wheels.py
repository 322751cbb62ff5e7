"""Models are extracted from the pinned wheel only; failures give one line with the reason."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import real_models
from real_models import MAGIKA, SILERO_VAD, UnreachableError, fetch

VAD, IFLESS, OTHER = (real_models.BY_NAME[name] for name in ("silero-vad", "silero-vad-ifless", "magika"))


@pytest.fixture
def requirements_asked(tmp_path, monkeypatch):
    """Replace pip by a function that records requirements and writes a wheel; use an empty cache."""
    requirements = []

    def run(command, **_):
        *_, folder, requirement = command
        requirements.append(requirement)
        with zipfile.ZipFile(Path(folder) / "made.whl", "w") as archive:
            for model in (VAD, IFLESS):
                archive.writestr(f"silero_vad/data/{model.file}", model.name)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(real_models, "MODELS_FOLDER", tmp_path / "models")
    monkeypatch.setattr(real_models, "_failures", [])
    monkeypatch.setattr(subprocess, "run", run)
    return requirements


def test_a_wheel_is_downloaded_once_for_all_its_models(requirements_asked, monkeypatch):
    monkeypatch.setattr(real_models, "sha256_of", lambda _: SILERO_VAD.sha256)
    for model in (VAD, IFLESS, VAD):
        assert fetch(model).read_text() == model.name
    assert requirements_asked == [f"silero-vad=={SILERO_VAD.version}"]
    assert {path.name for path in real_models.MODELS_FOLDER.iterdir()} == {"lock", SILERO_VAD.folder.name}


def test_another_wheel_than_the_pinned_one_is_an_error(requirements_asked):
    with pytest.raises(AssertionError, match=rf"made\.whl has SHA-256 \w+, but {SILERO_VAD.sha256} is"):
        fetch(VAD)
    assert not SILERO_VAD.folder.exists()


def test_without_a_network_the_reason_is_given_and_pypi_asked_once(requirements_asked, monkeypatch):
    def run(command, **_):
        requirements_asked.append(command[-1])
        return SimpleNamespace(returncode=1, stderr="WARNING: Retrying\nERROR: No matching distribution\n\n")

    monkeypatch.setattr(subprocess, "run", run)
    for model in (OTHER, VAD):
        with pytest.raises(UnreachableError, match=r"^no network, or no such wheel: pip .*No matching dist"):
            fetch(model)
    assert requirements_asked == [f"magika=={MAGIKA.version}"]


@pytest.mark.parametrize("model", real_models.MODELS, ids=lambda model: model.name)
def test_inputs_are_the_same_each_time_and_of_one_type_in_both_sizes(model):
    feeds, again, timed = model.feeds(), model.feeds(), model.feeds(timed=True)
    assert feeds.keys() == again.keys() == timed.keys()
    for name, values in feeds.items():
        assert (values == again[name]).all()
        assert (values.dtype, values.ndim) == (timed[name].dtype, timed[name].ndim)
