"""A cluster with cards of several kinds, whose workers run in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

from convswap.runtime.cluster import Cluster
from convswap.runtime.device import Device


class PretendCluster(Cluster):
    """A worker for each of `cards`, by name; `enter` is called with the name before each call."""

    def __init__(self, cards: Sequence[str], enter: Callable[[str], None]) -> None:
        facts = [{"name": name, "compute_capability": 90} for name in cards]
        self.devices = [Device("cuda", "asked for", each) for each in facts]
        self.device = self.devices[0]
        self.workers = [SimpleNamespace(run=SimpleNamespace(remote=self._remote(name))) for name in cards]
        self.ray = SimpleNamespace(put=lambda value: value)
        self._enter = enter

    def _remote(self, name: str) -> Callable[..., Any]:
        def remote(*call: Any) -> Any:
            self._enter(name)
            function, *arguments = pickle.loads(pickle.dumps(call))
            return pickle.loads(pickle.dumps(function(*arguments)))

        return remote

    def result(self, reference: Any) -> Any:
        """Return the result of a call, which was done at once."""
        return reference

    def connect(self, monkeypatch: Any, module: ModuleType) -> None:
        """Make `module` connect to this cluster, whatever the address."""
        monkeypatch.setattr(module, "connected", lambda address, device: nullcontext(self))
