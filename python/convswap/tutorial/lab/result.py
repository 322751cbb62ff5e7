"""What a run of the lab found, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from convswap.output.files import finite

SCHEMA = 1
# So much of a line that a kernel prints is shown.
PRINTED_SHOWN = 200


@dataclass(frozen=True)
class Fault:
    """What is wrong: its `kind`, one word, and the paragraph. `detail` has figures for programs.

    The kinds are "compile", "launch", "outside", "unwritten", "wrong", "race", "crash", "time", "output".
    """

    kind: str
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fault with the keys of `convswap lab run --json`."""
        return {"kind": self.kind, "text": self.text, **self.detail}


def flood_of(name: str, printed: str) -> Fault:
    """Return the fault of a kernel that `printed` more than anybody reads."""
    lines = printed.splitlines()
    return Fault(
        "output",
        f"{name} prints more than {len(lines):,} lines, the first is {lines[0][:PRINTED_SHOWN]!r}: a print "
        "takes thousands of times as long as the arithmetic. Print of one thread alone, or nothing.",
        {"lines": len(lines)},
    )


@dataclass(frozen=True)
class LayerTimes:
    """A convolution's milliseconds by the kernel, and by what it is set beside, by name.

    `floor_ms` is None where the card's ceilings are not known. `facts` is what the card says of the kernel:
    registers and spilled bytes of a thread, bytes of shared memory and threads of a block, blocks, how many
    of these a multiprocessor holds at once, and how many threads it can hold; and how many outputs there are.
    """

    node: str
    milliseconds: float
    marks: Mapping[str, float]
    floor_ms: float | None
    bytes: int
    operations: int
    facts: Mapping[str, Any]

    @property
    def occupancy(self) -> float:
        """The share of a multiprocessor's places for threads that the kernel can take."""
        held = self.facts["resident_blocks"] * self.facts["threads"]
        return float(held / max(self.facts["threads_per_multiprocessor"], 1))

    def to_json(self) -> dict[str, Any]:
        """Return the layer with the keys of `convswap lab run --json`."""
        return {**asdict(self), "facts": dict(self.facts), "occupancy": self.occupancy}


@dataclass(frozen=True)
class LabResult:
    """What came of a kernel: a fault, or how it compares.

    `cases` is how many convolutions it computed rightly, `relative_l2_error` the worst of their errors.
    `emulated` says whether it was also checked thread by thread on the processor, and `not_emulated` why not.
    `layers` is empty where nothing was timed; `network_error` is how far the whole model's outputs are from
    the default provider's, None without a model. `counters` are the card's, by name, where they were asked
    for. `seconds` is what it all took, of it `compile_seconds` the compiler.
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
        """Whether nothing was found wrong, and something was checked."""
        return self.fault is None and (self.cases > 0 or self.emulated)

    @property
    def milliseconds(self) -> float | None:
        """The time of all convolutions that the kernel computes; None where nothing was timed."""
        return sum(layer.milliseconds for layer in self.layers) if self.layers else None

    @property
    def floor_ms(self) -> float | None:
        """The least time that the card can take for them; None where it is not known."""
        floors = [layer.floor_ms for layer in self.layers if layer.floor_ms is not None]
        return sum(floors) if self.layers and len(floors) == len(self.layers) else None

    @property
    def gigabytes_per_second(self) -> float | None:
        """The bytes that must move, by the time that they took; None where nothing was timed."""
        milliseconds = self.milliseconds
        moved = sum(layer.bytes for layer in self.layers)
        return moved / milliseconds / 1e6 if milliseconds else None

    @property
    def marks(self) -> dict[str, float]:
        """The times of all convolutions by each that computes all of them, in the order of the ladder."""
        names = self.layers[0].marks if self.layers else {}
        times = {
            name: [layer.marks[name] for layer in self.layers if layer.marks.get(name) is not None]
            for name in names
        }
        return {name: sum(own) for name, own in times.items() if len(own) == len(self.layers)}

    def mark(self, name: str) -> float | None:
        """Return the time of all convolutions by `name`; None where it does not compute each of them."""
        return self.marks.get(name)

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
