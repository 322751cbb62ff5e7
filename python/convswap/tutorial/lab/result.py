"""The result of a run of the lab, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from convswap.output.files import finite

SCHEMA = 1
# Longer lines that a kernel prints are cut in messages.
MAX_PRINTED_CHARACTERS = 200


@dataclass(frozen=True)
class Fault:
    """A fault of a kernel: its `kind`, one word, and a paragraph for its author. `detail` is for programs.

    The kinds are "compile", "launch", "outside", "unwritten", "wrong", "race", "crash", "time", "output".
    """

    kind: str
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fault with the keys of `convswap lab run --json`."""
        return {"kind": self.kind, "text": self.text, **self.detail}


def flood_of(name: str, printed: str) -> Fault:
    """Return the fault of a kernel that `printed` too much."""
    lines = printed.splitlines()
    return Fault(
        "output",
        f"{name} prints more than {len(lines):,} lines, the first is {lines[0][:MAX_PRINTED_CHARACTERS]!r}: "
        "a print takes thousands of times as long as the arithmetic. Print from one thread only, or not at "
        "all.",
        {"lines": len(lines)},
    )


@dataclass(frozen=True)
class LayerTimes:
    """The milliseconds of a convolution by the kernel and by each baseline.

    `floor_ms` is None if the card's peak rates are unknown. `facts` describes the launch: registers and
    spilled bytes per thread, bytes of shared memory and threads per block, blocks, blocks that a
    multiprocessor holds at once, threads that it can hold, and outputs.
    """

    node: str
    milliseconds: float
    baselines: Mapping[str, float]
    floor_ms: float | None
    bytes: int
    operations: int
    facts: Mapping[str, Any]

    @property
    def occupancy(self) -> float:
        """Theoretical occupancy: resident threads divided by the threads that a multiprocessor can hold."""
        held = self.facts["resident_blocks"] * self.facts["threads"]
        return float(held / max(self.facts["threads_per_multiprocessor"], 1))

    def to_json(self) -> dict[str, Any]:
        """Return the layer with the keys of `convswap lab run --json`, where baselines are `marks`."""
        layer = {"marks" if key == "baselines" else key: value for key, value in asdict(self).items()}
        return {**layer, "facts": dict(self.facts), "occupancy": self.occupancy}


@dataclass(frozen=True)
class LabResult:
    """The result of a kernel: a fault, or its errors and times.

    `cases` counts the convolutions that were computed correctly; `relative_l2_error` is the largest of their
    errors. `emulated` says whether the kernel was also checked thread by thread on the CPU, `not_emulated`
    why not. `layers` is empty if nothing was timed. `network_error` is the relative L2 distance of the whole
    model's outputs from the default provider's, None without a model. `counters` has the card's counters by
    name, if they were read. `seconds` is the time of the whole run, `compile_seconds` NVRTC's part.
    """

    kernel: str
    digest: str
    interface: str
    target: str
    batch: int | None
    card: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    fault: Fault | None = None
    cases: int = 0
    relative_l2_error: float | None = None
    emulated: bool = False
    not_emulated: str = ""
    layers: tuple[LayerTimes, ...] = ()
    network_error: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    hint: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether the kernel was checked and no fault was found."""
        return self.fault is None and (self.cases > 0 or self.emulated)

    @property
    def milliseconds(self) -> float | None:
        """The time of all convolutions that the kernel computes; None if nothing was timed."""
        return sum(layer.milliseconds for layer in self.layers) if self.layers else None

    @property
    def floor_ms(self) -> float | None:
        """The sum of the layers' floors; None if one is unknown."""
        floors = [layer.floor_ms for layer in self.layers if layer.floor_ms is not None]
        return sum(floors) if self.layers and len(floors) == len(self.layers) else None

    @property
    def gigabytes_per_second(self) -> float | None:
        """The bytes that must move, divided by the time; None if nothing was timed."""
        milliseconds = self.milliseconds
        bytes_moved = sum(layer.bytes for layer in self.layers)
        return bytes_moved / milliseconds / 1e6 if milliseconds else None

    @property
    def baselines(self) -> dict[str, float]:
        """The total time of each baseline that computes all convolutions, in the order of the ladder."""
        names = self.layers[0].baselines if self.layers else {}
        times = {
            name: [layer.baselines[name] for layer in self.layers if layer.baselines.get(name) is not None]
            for name in names
        }
        return {name: sum(times_of) for name, times_of in times.items() if len(times_of) == len(self.layers)}

    def baseline(self, name: str) -> float | None:
        """Return the time of all convolutions by the baseline `name`; None if it does not compute all."""
        return self.baselines.get(name)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap lab run --json` writes."""
        return finite(
            {
                "schema": SCHEMA,
                "kernel": self.kernel,
                "digest": self.digest,
                "interface": self.interface,
                "target": self.target,
                "batch": self.batch,
                "card": self.card,
                "environment": dict(self.environment),
                "right": self.is_right,
                "fault": None if self.fault is None else self.fault.to_json(),
                "cases": self.cases,
                "relative_l2_error": self.relative_l2_error,
                "emulated": self.emulated,
                "not_emulated": self.not_emulated,
                "milliseconds": self.milliseconds,
                "floor_ms": self.floor_ms,
                "gigabytes_per_second": self.gigabytes_per_second,
                "layers": [layer.to_json() for layer in self.layers],
                "network_error": self.network_error,
                "counters": dict(self.counters),
                "hint": self.hint,
                "notes": list(self.notes),
                "seconds": self.seconds,
                "compile_seconds": self.compile_seconds,
            }
        )
