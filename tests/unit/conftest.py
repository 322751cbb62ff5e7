"""Makes unit tests fail that create a session of ONNX Runtime or start a Python process."""

from __future__ import annotations

import subprocess
import sys

import onnxruntime
import pytest


@pytest.fixture(autouse=True)
def no_sessions_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_session(*_: object, **__: object) -> None:
        raise AssertionError("this test makes a session: it belongs into tests/session")

    class NoPython(subprocess.Popen):
        def __init__(self, args, *positional, **options) -> None:
            if not isinstance(args, str) and str(args[0]) == sys.executable:
                raise AssertionError("this test starts a Python: it belongs into tests/programs")
            super().__init__(args, *positional, **options)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", no_session)
    monkeypatch.setattr(subprocess, "Popen", NoPython)
