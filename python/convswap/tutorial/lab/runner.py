"""Compiles, checks and times kernels in the worker's process.

A `Runner` keeps the timer and the baselines' times from one kernel to the next.
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
from convswap.tutorial.lab.card_times import (
    BEST,
    DEFAULT_PROVIDER,
    CardTimes,
    available_baselines,
    network_error,
)
from convswap.tutorial.lab.checks import Case, cases_for
from convswap.tutorial.lab.emulation_check import (
    MAX_SHARED_BYTES,
    NotTranslatedError,
    check_in_emulation,
    find_host_compiler,
)
from convswap.tutorial.lab.hints import hint_for
from convswap.tutorial.lab.kernel import LabKernel, Request, compile_kernel
from convswap.tutorial.lab.result import Fault, LabResult
from convswap.tutorial.lab.targets import Target, check_target, open_target
from convswap.tutorial.lab.warm_up import WarmUp

# The stage of the emulation, and the time limit of its compiler, which is added to that of the check.
_EMULATING = "running it thread by thread on the CPU"
_HOST_COMPILER_SECONDS = 90.0
# A crash destroys the process's CUDA context. A write outside of tensors may damage the next kernel's data.
_FAULTS_THAT_END_THE_WORKER = ("crash", "outside")
# CUPTI runs the kernel once per pass and restores memory in between.
_COUNTER_SECONDS = 60.0
# Time limit of the compiler, in time limits of a check.
_COMPILE_TIME_FACTOR = 6
# Largest relative L2 distance of a whole model's outputs from the default provider's.
_NETWORK_TOLERANCE = 5e-3


class ReportStage(Protocol):
    """Reports to the parent that a stage begins and its time limit; `shown` stages are shown to the user."""

    def __call__(self, stage: str, seconds: float, *, shown: bool = True) -> None:
        """Report the stage."""


class Runner:
    """Runs kernels, one after the other."""

    def __init__(self, report_stage: ReportStage, warm_up: WarmUp | None = None) -> None:
        self._report_stage = report_stage
        self._warm_up = warm_up
        self._times: CardTimes | None = None
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether the worker must end before another kernel runs, whichever fault is reported."""
        return self._is_lost

    def run(self, request: Request, path: str) -> LabResult:
        """Run a kernel, whose file is `path`, and return the result.

        Raises:
            ConvswapError: the target or an option is wrong, or kernels cannot be compiled here.
        """
        begin = time.perf_counter()
        check_target(request.target)
        device = choose_device(request.device)
        is_card = device.card is not None
        result = request.result(card=device.title if is_card else None, environment=environment(device))
        if is_card:
            self._warm_up = self._warm_up or WarmUp()
        result = self._compiled(request, result, device)
        if result.fault is None:
            check = self._on_card if is_card else self._without_card
            try:
                result = check(request, path, result, device)
            except _LaunchError as error:
                result = replace(result, fault=Fault("launch", f"{error}."))
        return replace(result, seconds=time.perf_counter() - begin)

    def counters(self, request: Request, path: str) -> dict[str, float]:
        """Return the counters of a correct kernel, for the layer of the target that moves the most bytes.

        Raises:
            ConvswapError: CUPTI is not installed, or returns an error.
        """
        from convswap.tutorial.lab.counters import counters_of

        self._report_stage("reading the card's counters", _COUNTER_SECONDS)
        opened = open_target(request.target, request.kernel, request.batch, choose_device("cuda"))
        return counters_of(path, layer_case(max(opened.supported, key=lambda conv: conv.problem.bytes)))

    def _compiled(self, request: Request, result: LabResult, device: Device) -> LabResult:
        capability = (device.card or {}).get("compute_capability") or request.compute_capability
        self._report_stage(f"compiling {request.kernel.name}", _COMPILE_TIME_FACTOR * request.seconds)
        begin = time.perf_counter()
        try:
            fault = compile_kernel(request.kernel, int(capability))
        except RuntimeError as error:
            raise ConvswapError(f"kernels cannot be compiled: {error}") from error
        return replace(result, fault=fault, compile_seconds=time.perf_counter() - begin)

    def _without_card(self, request: Request, _path: str, result: LabResult, device: Device) -> LabResult:
        kernel, seconds = request.kernel, request.seconds
        cases = _cases(kernel)
        _check_launches(kernel, {str(case): case.problem for case in cases}, MAX_SHARED_BYTES)
        self._report_stage(_EMULATING, seconds + _HOST_COMPILER_SECONDS)
        # A note shows the first line that the kernel prints; on a card the driver prints it.
        emulation = _Emulation(kernel, cases, seconds, prints=True)
        why = "" if device.reason == "asked for" else f": {device.reason}"
        note = f"not timed, because there is no card to run it{why}"
        result = emulation.finish(result)
        checked = len(cases) if result.emulated and result.fault is None else 0
        return replace(result, cases=checked, notes=(note,))

    def _on_card(self, request: Request, path: str, result: LabResult, device: Device) -> LabResult:
        kernel, seconds = request.kernel, request.seconds
        cases = _cases(kernel)
        limit = int((device.card or {}).get("shared_memory_per_block", MAX_SHARED_BYTES))
        _check_launches(kernel, {str(case): case.problem for case in cases}, limit)
        # The emulation runs on the CPU while the card is busy.
        emulation = _Emulation(kernel, cases, seconds)
        self._report_stage("opening the card", 60)
        assert self._warm_up is not None
        self._warm_up.wait()
        target = open_target(request.target, kernel, request.batch, device)
        result = replace(result, batch=target.batch, notes=_unsupported_notes(target))
        _check_launches(kernel, {conv.layer.name: conv.problem for conv in target.supported}, limit)
        self._report_stage("checking it on the card", 60)
        worst = 0.0
        for case in [*cases, *map(layer_case, target.supported)]:
            # The reference of a large case is computed on the card, by a kernel that may have to be compiled.
            self._report_stage(f"computing the reference for {case}", 120, shown=False)
            _ = case.reference, case.magnitude
            self._report_stage(f"checking {case}", seconds, shown=False)
            fault, error = check_on_card(kernel, path, case)
            if fault is not None:
                self._is_lost = fault.kind in _FAULTS_THAT_END_THE_WORKER
                if fault.kind != "crash":
                    return replace(result, fault=fault)
                # The emulation can explain a crash better than the driver.
                self._report_stage(_EMULATING, seconds + _HOST_COMPILER_SECONDS)
                return replace(result, fault=emulation.finish(result).fault or fault)
            worst = max(worst, error)
            result = replace(result, cases=result.cases + 1, relative_l2_error=worst)
        result = self._timed(request, path, result, target, device)
        if result.fault is None:
            self._report_stage(_EMULATING, seconds + _HOST_COMPILER_SECONDS)
            result = emulation.finish(result)
        return result

    def _timed(
        self, request: Request, path: str, result: LabResult, target: Target, device: Device
    ) -> LabResult:
        kernel, seconds = request.kernel, request.seconds
        self._report_stage(f"running {target.title} with it", 4 * seconds + 30)
        error = network_error(target, path, device)
        if error is not None and not error <= _NETWORK_TOLERANCE:
            finite_error = error if math.isfinite(error) else None
            return replace(result, network_error=finite_error, fault=_network_fault(kernel, target, error))
        result = replace(result, network_error=error)
        if not request.time:
            return result
        self._times = self._times or CardTimes(device, GpuTimer())
        layers = []
        for conv in target.supported:
            names = available_baselines(conv) if request.baselines else [DEFAULT_PROVIDER, BEST]
            baselines = {}
            for name in names:
                # The limit includes compiling the baseline's kernels.
                self._report_stage(f"timing {conv.layer.name} by {name}", 180)
                baselines[name] = self._times.baseline(conv, name)
            self._report_stage(f"timing {conv.layer.name}", 4 * seconds + 60)
            layers.append(self._times.layer(conv, kernel, path, baselines))
        result = replace(result, layers=tuple(layers))
        return replace(result, hint=hint_for(result, int((device.card or {})["multiprocessors"])))


class _Emulation:
    """A check on the CPU, in a thread of its own, while the card is busy."""

    def __init__(
        self, kernel: LabKernel, cases: tuple[Case, ...], seconds: float, *, prints: bool = False
    ) -> None:
        self._compiler = find_host_compiler()
        self._why_not = "" if self._compiler else "no C++ compiler for the CPU, such as g++, was found"
        self._fault: Fault | None = None
        self._thread = threading.Thread(
            target=self._check, args=(kernel, cases, seconds, prints), daemon=True
        )
        if self._compiler:
            self._thread.start()

    def _check(self, kernel: LabKernel, cases: tuple[Case, ...], seconds: float, prints: bool) -> None:
        assert self._compiler is not None
        try:
            self._fault = check_in_emulation(kernel, cases, self._compiler, seconds, prints=prints)
        except NotTranslatedError as error:
            self._why_not = f"the emulation lacks something that the kernel uses: {error}"
        except ConvswapError as error:
            self._fault = Fault("launch", f"{error}.")

    def finish(self, result: LabResult) -> LabResult:
        """Wait for the check and return `result` with its outcome."""
        if self._compiler:
            self._thread.join()
        return replace(
            result, fault=result.fault or self._fault, emulated=not self._why_not, not_emulated=self._why_not
        )


class _LaunchError(Exception):
    """The launch line gives a launch that no card accepts; the message names the sizes."""


def _check_launches(kernel: LabKernel, problems: Mapping[str, _native.Problem], shared_bytes: int) -> None:
    for sizes, problem in problems.items():
        try:
            kernel.source.launch(problem, shared_bytes)
        except ConvswapError as error:
            raise _LaunchError(f"{error}; the sizes are those of {sizes}") from None


def _cases(kernel: LabKernel) -> tuple[Case, ...]:
    cases = cases_for(kernel)
    if not cases:
        raise ConvswapError(
            f"{kernel.name} has no convolution to be checked with: its `only` line excludes all small "
            "convolutions and all layers of the course"
        )
    return cases


def _unsupported_notes(target: Target) -> tuple[str, ...]:
    return tuple(
        f"{conv.layer.name} is computed by the library: {conv.why_not}"
        for conv in target.layers
        if conv.why_not
    )


def _network_fault(kernel: LabKernel, target: Target, error: float) -> Fault:
    distance = "not finite" if not math.isfinite(error) else f"{error:.2e}"
    return Fault(
        "wrong",
        f"{kernel.name} changes the answers of {target.title}: their relative L2 distance from the default "
        f"provider's is {distance}, the limit is {_NETWORK_TOLERANCE:g}; each convolution alone was correct.",
        {"case": target.title},
    )
