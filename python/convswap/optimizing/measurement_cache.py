"""The cache of measurements, a file beside the tuning table, so that a second call need not repeat them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import Stage
from convswap.optimizing.choice import DEFAULT_VARIANT, Variant
from convswap.output.files import json_text, write_cache
from convswap.progress import note
from convswap.runtime.tuning import table_path

_NAME = "optimize.json"
_DEFAULT = "default"


@dataclass(frozen=True)
class Measurement:
    """The times of a Conv with the nodes that can be fused with it, or its precision and errors.

    `times` has the milliseconds of each variant at every batch, and is empty in a record of errors.
    `precision` and `errors`, which are None in a record of times, are as in `result.NodeResult`.
    """

    precision: str | None
    errors: Mapping[str, float] | None
    times: Mapping[Variant, tuple[float, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return an object for the cache file."""
        times = {
            _DEFAULT if variant is None else variant.name: list(by_batch)
            for variant, by_batch in self.times.items()
        }
        return {"precision": self.precision, "errors": self.errors, "times": times}

    @staticmethod
    def from_json(cached: Mapping[str, Any]) -> Measurement:
        """Return the measurement for which `to_json` returned `cached`.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: `cached` is damaged.
        """
        times = {
            DEFAULT_VARIANT if name == _DEFAULT else Stage[name]: tuple(float(time) for time in by_batch)
            for name, by_batch in cached["times"].items()
        }
        errors = cached["errors"]
        return Measurement(
            cached["precision"],
            None if errors is None else {str(name): float(error) for name, error in errors.items()},
            times,
        )


_Cached = TypeVar("_Cached")


class MeasurementCache:
    """The measurements of one device and one set of versions, by key.

    If the file cannot be written, one note says so, and the measurements last for this call only. `path` is
    None if there is no home folder.
    """

    def __init__(self, environment: Mapping[str, str | None]) -> None:
        self.path: Path | None = None
        self._is_disabled = False
        try:
            self.path = table_path().with_name(_NAME)
        except ConvswapError as error:
            self._disable(error)
        self._machine = " | ".join(f"{name} {value}" for name, value in sorted(environment.items()))
        self._by_machine = self._read()
        self._added: dict[str, Any] = {}
        self.hits = 0  # measurements of earlier calls that were used

    def get(self, key: str) -> Measurement | None:
        """Return the measurement with `key`; None if there is none, or it is damaged."""
        return self._look_up(key, Measurement.from_json)

    def numbers(self, key: str) -> dict[str, float] | None:
        """Return the numbers that were added with `key`, such as each algorithm's time; None as for `get`."""
        return self._look_up(key, _numbers_from_json)

    def _look_up(self, key: str, from_json: Callable[[Mapping[str, Any]], _Cached]) -> _Cached | None:
        try:
            measured = from_json(self._by_machine[self._machine][key])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        self.hits += key not in self._added
        return measured

    def add(self, key: str, measured: Measurement | Mapping[str, float]) -> None:
        """Add `measured` and write the file at once, so that an interrupted call loses nothing."""
        if isinstance(measured, Measurement):
            self._added[key] = measured.to_json()
        else:
            self._added[key] = {"by_algorithm": dict(measured)}
        # Another process may have written the file since.
        self._by_machine = self._read()
        self._by_machine.setdefault(self._machine, {}).update(self._added)
        if self.path is None or self._is_disabled:
            return
        try:
            write_cache(self.path, json_text(self._by_machine))
        except ConvswapError as error:
            self._disable(error)

    def _disable(self, error: ConvswapError) -> None:
        self._is_disabled = True
        note(f"the measurements are not cached for later calls: {error}")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8-sig") if self.path and self.path.is_file() else ""
            read = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return {}
        return (
            {machine: entries for machine, entries in read.items() if isinstance(entries, dict)}
            if isinstance(read, dict)
            else {}
        )


def _numbers_from_json(cached: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(number) for name, number in cached["by_algorithm"].items()}
