"""The cache of measurements, beside the tuning table, so that a second call need not repeat them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import Stage
from convswap.optimizing.choice import DEFAULT_WAY, Way
from convswap.output.files import json_text, write_cache
from convswap.progress import note
from convswap.runtime.tuning import table_path

_NAME = "optimize.json"
_DEFAULT = "default"


@dataclass(frozen=True)
class Measurement:
    """The times and errors of a Conv with the nodes that can be fused with it.

    `times` has the milliseconds of each way at every batch; `precision` and `errors` are as in
    `result.NodeResult`.
    """

    precision: str | None
    errors: Mapping[str, float] | None
    times: Mapping[Way, tuple[float, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return an object for the cache file."""
        times = {_DEFAULT if way is None else way.name: list(own) for way, own in self.times.items()}
        return {"precision": self.precision, "errors": self.errors, "times": times}

    @staticmethod
    def from_json(cached: Mapping[str, Any]) -> Measurement:
        """Return the measurement that `to_json` gave as `cached`.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is damaged.
        """
        times = {
            DEFAULT_WAY if name == _DEFAULT else Stage[name]: tuple(float(time) for time in own)
            for name, own in cached["times"].items()
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

    Where the file cannot be written, one note says so, and the measurements last for this call only. `path`
    is None where there is no home folder.
    """

    def __init__(self, environment: Mapping[str, str | None]) -> None:
        self.path: Path | None = None
        self._is_lost = False
        try:
            self.path = table_path().with_name(_NAME)
        except ConvswapError as error:
            self._lose(error)
        self._machine = " | ".join(f"{name} {value}" for name, value in sorted(environment.items()))
        self._all = self._read()
        self._added: dict[str, Any] = {}
        self.found = 0  # measurements of earlier calls that were used

    def get(self, key: str) -> Measurement | None:
        """Return the measurement with `key`; None where there is none, or it is damaged."""
        return self._found(key, Measurement.from_json)

    def numbers(self, key: str) -> dict[str, float] | None:
        """Return the numbers that were added with `key`, such as each algorithm's time; None as for `get`."""
        return self._found(key, _numbers_from_json)

    def _found(self, key: str, from_json: Callable[[Mapping[str, Any]], _Cached]) -> _Cached | None:
        try:
            measured = from_json(self._all[self._machine][key])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        self.found += key not in self._added
        return measured

    def add(self, key: str, measured: Measurement | Mapping[str, float]) -> None:
        """Add `measured` and write the file at once, so that an interrupted call loses nothing."""
        if isinstance(measured, Measurement):
            self._added[key] = measured.to_json()
        else:
            self._added[key] = {"by_algorithm": dict(measured)}
        # Another process may have written the file since.
        self._all = self._read()
        self._all.setdefault(self._machine, {}).update(self._added)
        if self.path is None or self._is_lost:
            return
        try:
            write_cache(self.path, json_text(self._all))
        except ConvswapError as error:
            self._lose(error)

    def _lose(self, error: ConvswapError) -> None:
        self._is_lost = True
        note(f"the measurements are not kept for later calls: {error}")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8-sig") if self.path and self.path.is_file() else ""
            read = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return {}
        return (
            {machine: own for machine, own in read.items() if isinstance(own, dict)}
            if isinstance(read, dict)
            else {}
        )


def _numbers_from_json(cached: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(number) for name, number in cached["by_algorithm"].items()}
