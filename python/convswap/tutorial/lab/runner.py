"""Everything that is done with one kernel, in the worker's process: compile, check, time.

What lasts from one kernel to the next, the timer and the times of other algorithms, stays in a `BenchTop`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime.device import Device, choose_device, environment
from convswap.timing.gpu_timer import GpuTimer
from convswap.tutorial.lab.card_check import check_on_card, layer_case
from convswap.tutorial.lab.card_times import BEST, PROVIDER, CardTimes, able_marks, network_error
from convswap.tutorial.lab.checks import Case, cases_for
from convswap.tutorial.lab.emulation_check import (
    SHARED_BYTES,
    NotTranslatedError,
    check_in_emulation,
    find_host_compiler,
)
from convswap.tutorial.lab.hints import hint_for
from convswap.tutorial.lab.kernel import Kernel, Request, compile_kernel
from convswap.tutorial.lab.result import Fault, LabResult
from convswap.tutorial.lab.targets import Target, check_target, open_target
from convswap.tutorial.lab.warm_up import Opening

# What the check on the processor is called, and what its compiler may take beside it.
_EMULATING = "running it thread by thread on the processor"
_HOST_COMPILER_SECONDS = 90.0
# After which faults on a card all that this process has there is lost, or may be: what was written outside of
# tensors shows later, in the next kernel's run.
_LASTING = ("crash", "outside")
# The kernel runs a few times, and what it wrote is put back in between.
_COUNTER_SECONDS = 60.0
# So many times what a check may take, the compiler may.
_COMPILE_CHECKS = 6
# What a whole model's outputs may differ by, of their size.
_NETWORK_TOLERANCE = 5e-3


class Telling(Protocol):
    """Says what begins, and how many seconds it may take; to the user too, where it is `shown`."""

    def __call__(self, stage: str, seconds: float, *, shown: bool = True) -> None:
        """Say so."""


class BenchTop:
    """Runs one kernel after the other."""

    def __init__(self, tell: Telling, opening: Opening | None = None) -> None:
        self._tell = tell
        self._opening = opening
        self._times: CardTimes | None = None
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether no other kernel should run here, whatever is told of the one that did."""
        return self._is_lost

    def run(self, asked: Request, path: str) -> LabResult:
        """Return what comes of a kernel, whose file is `path`.

        Raises:
            ConvswapError: the target or an option is none, or the launch line is not one for a card.
        """
        begin = time.perf_counter()
        check_target(asked.target)
        device = choose_device(asked.device)
        is_card = device.card is not None
        result = asked.result(card=device.title if is_card else None, environment=environment(device))
        if is_card:
            self._opening = self._opening or Opening()
        result = self._compiled(asked, result, device)
        if result.fault is None:
            check = self._on_card if is_card else self._without_card
            try:
                result = check(asked, path, result, device)
            except _LaunchError as error:
                result = replace(result, fault=Fault("launch", f"{error}."))
        return replace(result, seconds=time.perf_counter() - begin)

    def counters(self, asked: Request, path: str) -> dict[str, float]:
        """Return the counters of a kernel that is right, for that layer of the target that moves most bytes.

        Raises:
            ConvswapError: CUPTI is not installed, or refuses.
        """
        from convswap.tutorial.lab.counters import counters_of

        self._tell("reading the card's counters", _COUNTER_SECONDS)
        opened = open_target(asked.target, asked.kernel, asked.batch, choose_device("cuda"))
        return counters_of(path, layer_case(max(opened.taken, key=lambda one: one.problem.bytes)))

    def _compiled(self, asked: Request, result: LabResult, device: Device) -> LabResult:
        capability = (device.card or {}).get("compute_capability") or asked.compute_capability
        self._tell(f"compiling {asked.kernel.name}", _COMPILE_CHECKS * asked.seconds)
        begin = time.perf_counter()
        try:
            fault = compile_kernel(asked.kernel, int(capability))
        except RuntimeError as error:
            raise ConvswapError(f"kernels cannot be compiled: {error}") from error
        return replace(result, fault=fault, compile_seconds=time.perf_counter() - begin)

    def _without_card(self, asked: Request, _path: str, result: LabResult, device: Device) -> LabResult:
        kernel, seconds = asked.kernel, asked.seconds
        cases = _cases(kernel)
        _check_launches(kernel, {str(case): case.problem for case in cases}, SHARED_BYTES)
        self._tell(_EMULATING, seconds + _HOST_COMPILER_SECONDS)
        emulation = _Emulation(kernel, cases, seconds)
        why = "" if device.reason == "asked for" else f": {device.reason}"
        note = f"timed nowhere, since there is no card to run it{why}"
        result = emulation.finish(result)
        checked = len(cases) if result.emulated and result.fault is None else 0
        return replace(result, cases=checked, notes=(note,))

    def _on_card(self, asked: Request, path: str, result: LabResult, device: Device) -> LabResult:
        kernel, seconds = asked.kernel, asked.seconds
        cases = _cases(kernel)
        limit = int((device.card or {}).get("shared_memory_per_block", SHARED_BYTES))
        _check_launches(kernel, {str(case): case.problem for case in cases}, limit)
        # The processor has nothing else to do meanwhile.
        emulation = _Emulation(kernel, cases, seconds)
        self._tell("opening the card", 60)
        assert self._opening is not None
        self._opening.wait()
        target = open_target(asked.target, kernel, asked.batch, device)
        result = replace(result, batch=target.batch, notes=_left(target))
        _check_launches(kernel, {one.layer.name: one.problem for one in target.taken}, limit)
        self._tell("checking it on the card", 60)
        worst = 0.0
        for case in [*cases, *map(layer_case, target.taken)]:
            # On the card, by a kernel of ours, which may have to be compiled.
            self._tell(f"computing what is right for {case}", 120, shown=False)
            _ = case.reference, case.magnitude
            self._tell(f"checking {case}", seconds, shown=False)
            fault, error = check_on_card(kernel, path, case)
            if fault is not None:
                self._is_lost = fault.kind in _LASTING
                if fault.kind != "crash":
                    return replace(result, fault=fault)
                # Thread by thread more can be said than by a card that gave up.
                self._tell(_EMULATING, seconds + _HOST_COMPILER_SECONDS)
                return replace(result, fault=emulation.finish(result).fault or fault)
            worst = max(worst, error)
            result = replace(result, cases=result.cases + 1, relative_l2_error=worst)
        result = self._timed(asked, path, result, target, device)
        if result.fault is None:
            self._tell(_EMULATING, seconds + _HOST_COMPILER_SECONDS)
            result = emulation.finish(result)
        return result

    def _timed(
        self, asked: Request, path: str, result: LabResult, target: Target, device: Device
    ) -> LabResult:
        kernel, seconds = asked.kernel, asked.seconds
        self._tell(f"running {target.title} with it", 4 * seconds + 30)
        error = network_error(target, path, device)
        if error is not None and not error <= _NETWORK_TOLERANCE:
            known = error if math.isfinite(error) else None
            return replace(result, network_error=known, fault=_network_fault(kernel, target, error))
        result = replace(result, network_error=error)
        if not asked.time:
            return result
        self._times = self._times or CardTimes(device, GpuTimer())
        layers = []
        for one in target.taken:
            names = able_marks(one) if asked.marks else [PROVIDER, BEST]
            marks = {}
            for name in names:
                # Whose kernels may have to be compiled.
                self._tell(f"timing {one.layer.name} by {name}", 180)
                marks[name] = self._times.mark(one, name)
            self._tell(f"timing {one.layer.name}", 4 * seconds + 60)
            layers.append(self._times.layer(one, kernel, path, marks))
        result = replace(result, layers=tuple(layers))
        return replace(result, hint=hint_for(result, int((device.card or {})["multiprocessors"])))


class _Emulation:
    """A check on the processor, in a thread of its own, while the card is busy."""

    def __init__(self, kernel: Kernel, cases: tuple[Case, ...], seconds: float) -> None:
        self._compiler = find_host_compiler()
        self._why_not = "" if self._compiler else "no compiler for the processor, such as g++, was found"
        self._fault: Fault | None = None
        self._thread = threading.Thread(target=self._check, args=(kernel, cases, seconds), daemon=True)
        if self._compiler:
            self._thread.start()

    def _check(self, kernel: Kernel, cases: tuple[Case, ...], seconds: float) -> None:
        assert self._compiler is not None
        try:
            self._fault = check_in_emulation(kernel, cases, self._compiler, seconds)
        except NotTranslatedError as error:
            self._why_not = f"the emulation does not know all that it uses: {error}"
        except ConvswapError as error:
            self._fault = Fault("launch", f"{error}.")

    def finish(self, result: LabResult) -> LabResult:
        """Return `result` with what came of the check, after it."""
        if self._compiler:
            self._thread.join()
        return replace(
            result, fault=result.fault or self._fault, emulated=not self._why_not, not_emulated=self._why_not
        )


class _LaunchError(Exception):
    """The launch line gives none that a card takes; says for which sizes."""


def _check_launches(kernel: Kernel, problems: Mapping[str, _native.Problem], shared_bytes: int) -> None:
    for sizes, problem in problems.items():
        try:
            kernel.source.launch(problem, shared_bytes)
        except ConvswapError as error:
            raise _LaunchError(f"{error}; so it is for {sizes}") from None


def _cases(kernel: Kernel) -> tuple[Case, ...]:
    cases = cases_for(kernel)
    if not cases:
        raise ConvswapError(
            f"{kernel.name} is for no convolution that it could be checked with: its `only` line leaves "
            "neither a small one nor a layer of the course"
        )
    return cases


def _left(target: Target) -> tuple[str, ...]:
    return tuple(
        f"{one.layer.name} is left to our own: {one.why_not}" for one in target.layers if one.why_not
    )


def _network_fault(kernel: Kernel, target: Target, error: float) -> Fault:
    how = "not finite" if not math.isfinite(error) else f"{error:.2e}"
    return Fault(
        "wrong",
        f"{kernel.name} changes the answers of {target.title}: with it their relative L2 distance from the "
        f"default provider's is {how}, at most {_NETWORK_TOLERANCE:g}; each convolution alone was right.",
        {"case": target.title},
    )
