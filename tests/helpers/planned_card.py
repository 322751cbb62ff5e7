"""Stands for `convswap._native` beside a card that plans but computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convswap import _native


class PlannedCard:
    """`convswap._native` beside one card with `facts`, for modules that plan for the card at hand."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._capability = facts["compute_capability"]

    def __getattr__(self, name: str) -> Any:
        return getattr(_native, name)

    def cuda_devices(self) -> list[Mapping[str, Any]]:
        return [self._facts]

    def compile_ahead(self, kernels: Sequence[str], capability: int) -> None:
        assert all(kernels) and capability == self._capability

    def tuning_device(self, device: str) -> str:
        return f"{device} {self._facts['name']}"

    def why_not(self, problem, algorithm, device):
        return _native.why_not(problem, algorithm, device, compute_capability=self._capability)

    def choose(self, problem, device, compute_capability=None):
        return _native.choose(problem, device, compute_capability=self._capability)

    def alternatives(self, problem, algorithm, most):
        return _native.alternatives(problem, algorithm, most, compute_capability=self._capability)

    def Estimates(self, problem, algorithm, tilings, **_):
        return _native.Estimates(problem, algorithm, tilings, compute_capability=self._capability)

    def fitted_costs(self, compute_capability=None):
        return _native.fitted_costs(compute_capability=self._capability)

    def cost_table(self):
        return _native.cost_table(compute_capability=self._capability)
