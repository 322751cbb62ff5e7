"""Inference sessions: how the session of each side is made, checked and run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from convswap.errors import ConvswapError
from convswap.graph.domain import CONVSWAP_OPS, DOMAIN, LAYER_NORM_OP, MUL_OP, ONNX_DOMAINS, POOL_OP, QUANT_OP
from convswap.graph.external_weights import AnyModel, Weights, as_split
from convswap.graph.serialisation import copy_of
from convswap.runtime.device import Device
from convswap.runtime.library import register, register_op_libraries, set_entry
from convswap.runtime.memory import released_at_once
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.override import ALWAYS_DISABLED, DISABLED_OPTIMIZERS_ENTRY
from convswap.runtime.packages import load_cuda_libraries
from convswap.runtime.values import (
    Arrays,
    RunFeeds,
    array_from_bits,
    contiguous,
    host_value,
    is_number,
    lacks_numpy_type,
    named_arrays,
    needs_host_value,
    onnx_type,
    run_feeds,
    widened,
)

# Makes ONNX Runtime record the provider of each node (from 1.24 on; ignored before).
_RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_MERGES_EQUAL_NODES = "CommonSubexpressionElimination"
_FORBID_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
# Idle threads of the CPU provider spin for milliseconds after a run, which slows the next session if two
# sessions alternate (by 70 % on two cores). So on the CPU both sides stop spinning between runs, which
# changes the time of a single session by no more than its noise.
STOP_SPINNING = "session.force_spinning_stop"
_DISABLE_PREPACKING = "session.disable_prepacking"
_NO_SYNCHRONISATION = "disable_synchronize_execution_providers"
# ONNX Runtime 1.31's Python looks this entry up in the options of every run. If it is missing, the lookup
# takes 40 us, many times the cost of launching a short run, and the value is 0.
_NO_CUDA_GRAPH = ("gpu_graph_id", "0")
# The size limit of messages that protobuf can serialise.
_LARGEST_MESSAGE = 2_000_000_000


@dataclass(frozen=True, eq=False)
class Side:
    """A configuration for running a model: a name, provider options, and session entries for the library.

    `uses_convswap` says whether convswap's library is registered. Sides are compared by identity.
    """

    name: str
    uses_convswap: bool = False
    provider_options: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)

    def with_options(self, options: Mapping[str, str]) -> Side:
        """Return another side with `options` added to those of the provider."""
        return replace(self, provider_options={**self.provider_options, **options})

    def with_entries(self, entries: Mapping[str, str]) -> Side:
        """Return another side with `entries` added to those of the session."""
        return replace(self, entries={**self.entries, **entries})


DEFAULT = Side("default")
CONVSWAP = Side("convswap", uses_convswap=True)
# In precision ieee the ops around the Convs must not round to TF32 either, which the provider does by
# default.
CONVSWAP_IEEE = Side("convswap", uses_convswap=True, provider_options={"use_tf32": "0"})
# The CUDA provider's options that affect Conv, one option for each side.
OTHER_SIDES = (
    Side("heuristic", provider_options={"cudnn_conv_algo_search": "HEURISTIC"}),
    Side("no_tf32", provider_options={"use_tf32": "0"}),
    Side("nhwc", provider_options={"prefer_nhwc": "1"}),
)


# Values of `against`: the sides that convswap is compared with.
AGAINST = ("default", "all")
NO_OTHER_SIDE_ON_CPU = "the CPU provider has no options for Conv, so the default is its only side"


def other_sides(device: Device, against: str) -> tuple[Side, ...]:
    """Return the sides besides the default that `against` ("default" or "all") asks for on `device`.

    On the CPU there are none: see `NO_OTHER_SIDE_ON_CPU`.
    """
    return OTHER_SIDES if against == "all" and device.name == "cuda" else ()


def convswap_side(device: Device, precision: str) -> Side:
    """Return the convswap side for `precision` on `device`."""
    return CONVSWAP_IEEE if precision == "ieee" and device.name == "cuda" else CONVSWAP


def make_session(
    model: AnyModel,
    side: Side,
    device: Device,
    *,
    only_device: bool = False,
    merges_equal_nodes: bool = True,
    optimizes: bool = True,
) -> onnxruntime.InferenceSession:
    """Return a session of `model` for `side` on `device`.

    `only_device` makes it an error if any node would run elsewhere; for models of one node.
    `merges_equal_nodes` merges nodes that compute the same, as ONNX Runtime does by default.
    `optimizes` False runs the nodes as they are, without prepacked weights.
    On the CPU the session uses the weights of a split model in place, so they must outlive the session.

    Raises:
        NoKernelError: there is no kernel for a node, with `only_device` on `device`.
        ConvswapError: ONNX Runtime cannot load the model, or the provider of `device` is not in use.
    """
    load_cuda_libraries(device.name)
    split = as_split(model)
    weights = split.referenced_weights()
    with session_source(split.message) as source, released_at_once() if weights else nullcontext():
        session = load_session(
            source,
            side,
            device,
            only_device=only_device,
            merges_equal_nodes=merges_equal_nodes,
            optimizes=optimizes,
            weights=weights,
        )
    check_session(session, side, device)
    return session


def load_session(
    source: bytes | str,
    side: Side,
    device: Device,
    *,
    only_device: bool = False,
    merges_equal_nodes: bool = True,
    optimizes: bool = True,
    profile_prefix: str | None = None,
    weights: Weights | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session of `source`, made by `session_source`, which `check_session` has not checked yet.

    A user's program makes a session in the same way, with the library registered for the convswap side. With
    `profile_prefix`, ONNX Runtime's profiler is on, and writes to a file whose path begins with it.
    `make_session`, which calls this function, documents the errors and the other arguments.
    """
    options = onnxruntime.SessionOptions()
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    options.log_severity_level = 4  # errors are raised, so the log need not repeat them
    options.add_session_config_entry(_RECORD_ASSIGNMENT, "1")
    if not merges_equal_nodes:
        # The library would add ALWAYS_DISABLED to the entry, and ONNX Runtime would warn about the change.
        options.add_session_config_entry(
            DISABLED_OPTIMIZERS_ENTRY, f"{_MERGES_EQUAL_NODES};{ALWAYS_DISABLED}"
        )
    if not optimizes:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(_DISABLE_PREPACKING, "1")
    if device.name == "cpu":
        options.add_session_config_entry(STOP_SPINNING, "1")
    elif only_device:
        options.add_session_config_entry(_FORBID_CPU_FALLBACK, "1")
    register_op_libraries(options)
    for key, value in side.entries.items():
        set_entry(options, key, value)
    if side.uses_convswap:
        register(options)
    initializers = [] if weights is None else _add_initializers(options, weights, device)
    provider = (device.provider, dict(side.provider_options))
    with plain_errors(f"ONNX Runtime cannot load the model on the {side.name} side"):
        session = onnxruntime.InferenceSession(source, options, providers=[provider], enable_fallback=0)
    # ONNX Runtime keeps the addresses of these values, so the values must live as long as the session.
    vars(session)["_initializers"] = initializers
    return session


def _add_initializers(
    options: onnxruntime.SessionOptions, weights: Weights, device: Device
) -> list[onnxruntime.OrtValue]:
    """Add `weights`, which are in no message, to `options`; return values that must outlive the session."""
    values = [value_on(array) for array in weights.values()]
    options.add_external_initializers(list(weights), values)
    if device.name == "cpu":
        # The CPU session uses the values in place. Other sessions copy them to the memory of the device.
        for name, value in zip(weights, values, strict=True):
            options.add_initializer(name, value)
    return values


def check_session(session: onnxruntime.InferenceSession, side: Side, device: Device) -> None:
    """Refuse a session that does not run on `device`, or in which a Conv of this side does not.

    ONNX Runtime below 1.24 does not report the providers of nodes. There the one-node sessions of the layers,
    which forbid other providers, are the check.

    Raises:
        ConvswapError: the session or a Conv runs elsewhere; the message names the first such Conv.
    """
    if device.provider not in session.get_providers():
        raise ConvswapError(
            f"ONNX Runtime could not start its {device.provider} (a library that it needs is missing); "
            "see `convswap doctor`, or use --device cpu"
        )
    report = getattr(session, "get_provider_graph_assignment_info", None)
    if report is None:
        return
    domains: tuple[str, ...] = ONNX_DOMAINS
    ops: tuple[str, ...] = ("Conv",)
    if side.uses_convswap:
        domains, ops = (DOMAIN,), (*CONVSWAP_OPS, QUANT_OP, POOL_OP, LAYER_NORM_OP, MUL_OP)
    for part in report():
        for node in part.get_nodes():
            if node.op_type in ops and node.domain in domains and part.ep_name != device.provider:
                raise ConvswapError(
                    f"{node.op_type} {node.name!r} of the {side.name} side would run on {part.ep_name}, "
                    f"not on {device.provider}; its element type may not be supported there: see "
                    "`convswap doctor`"
                )


@contextmanager
def session_source(model: onnx.ModelProto) -> Iterator[bytes | str]:
    """Yield the source from which ONNX Runtime loads `model`: its bytes, or a file if it is too large.

    The file exists until the context ends.

    Raises:
        ConvswapError: the model cannot be written.
    """
    with ExitStack() as stack:
        with plain_errors("the model cannot be prepared for ONNX Runtime"):
            source = _source(model, stack)
        yield source


def _source(model: onnx.ModelProto, stack: ExitStack) -> bytes | str:
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < _LARGEST_MESSAGE:
        return model.SerializeToString()
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="convswap-"))) / "model.onnx"
    copy = copy_of(model)
    onnx.save_model(copy, path, save_as_external_data=True, location="model.data")
    return str(path)


class BoundRun:
    """A session with inputs and outputs on the device, ready to be run and timed.

    `outputs` has the names of the outputs to compute, all by default.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        feeds: Mapping[str, onnxruntime.OrtValue],
        device: Device,
        outputs: Sequence[str] | None = None,
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._unsynchronised = onnxruntime.RunOptions()
        self._unsynchronised.add_run_config_entry(_NO_SYNCHRONISATION, "1")
        self._unsynchronised.add_run_config_entry(*_NO_CUDA_GRAPH)
        for name, value in feeds.items():
            self._binding.bind_ortvalue_input(name, value)
        self._output_devices: dict[str, str] = {}
        self._rebinds_outputs = False
        for output in session.get_outputs():
            if outputs is None or output.name in outputs:
                numeric = output.type.startswith("tensor(") and output.type != "tensor(string)"
                self._output_devices[output.name] = device.name if numeric else "cpu"
        self._bind_outputs()

    @property
    def outputs(self) -> list[str]:
        """The names of the computed outputs, in the session's order."""
        return list(self._output_devices)

    def once(self) -> None:
        """Run and wait for the result."""
        with plain_errors("ONNX Runtime cannot run the model"):
            self._run()

    def start(self, runs: int) -> None:
        """Start `runs` runs back to back."""
        with plain_errors("ONNX Runtime cannot run the model"):
            for _ in range(runs):
                self._run(self._unsynchronised)

    def _run(self, *options: onnxruntime.RunOptions) -> None:
        if self._rebinds_outputs:
            self._bind_outputs()
        try:
            self._session.run_with_iobinding(self._binding, *options)
        except Exception:  # ONNX Runtime's exceptions have no common class but this one.
            if self._rebinds_outputs:
                raise
            # A run writes into the output buffers of the last run. ONNX Runtime refuses that if an output's
            # shape differs from the declared one, or between runs. Rebinding makes it allocate new buffers.
            self._rebinds_outputs = True
            self._bind_outputs()
            self._session.run_with_iobinding(self._binding, *options)

    def _bind_outputs(self) -> None:
        for name, device_name in self._output_devices.items():
            self._binding.bind_output(name, device_name, 0)

    def wait(self) -> None:
        """Wait for all runs that were started."""
        self._binding.synchronize_outputs()

    def values(self) -> list[onnxruntime.OrtValue]:
        """Return the outputs of the last run, in the memory of the device, in the order of `outputs`."""
        return self._binding.get_outputs()


def on_device(feeds: Mapping[str, np.ndarray], device: Device) -> dict[str, onnxruntime.OrtValue]:
    """Return `feeds` as values to bind, in the memory of `device`.

    For a card, ONNX Runtime loads its CUDA provider here if no session has loaded it, which needs the CUDA
    libraries. Values that `host_value` makes stay on the host, and are copied to the device once, when bound.

    Raises:
        ConvswapError: the memory does not suffice, or ONNX Runtime cannot use the card.
    """
    load_cuda_libraries(device.name)
    with plain_errors(f"the inputs cannot be put into the memory of the device {device.name}"):
        return {name: _value(contiguous(values), device.name) for name, values in feeds.items()}


def shapes_of(values: Mapping[str, onnxruntime.OrtValue]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `values`."""
    return {name: tuple(value.shape()) for name, value in values.items()}


def value_on(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return a value that uses the memory of `array`, which is contiguous and must outlive the value."""
    return _value(array, "cpu")


def _value(array: np.ndarray, device: str) -> onnxruntime.OrtValue:
    if needs_host_value(array):
        return host_value(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0)


def run(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the numeric outputs of one run; `named_arrays` splits sequences and maps.

    Raises:
        ConvswapError: the run fails, or no output has numbers.
    """
    arrays = [values for values in run_named(session, feeds).values() if is_number(values)]
    if not arrays:
        raise ConvswapError("the model has no output with numbers; expected at least one")
    return arrays


def run_named(session: onnxruntime.InferenceSession, feeds: RunFeeds) -> Arrays:
    """Return the outputs of one run by name; `named_arrays` splits sequences, optionals and maps.

    Raises:
        ConvswapError: the run fails.
    """
    outputs = session.get_outputs()
    as_values = [output.name for output in outputs if lacks_numpy_type(output.type)]
    as_arrays = [output.name for output in outputs if output.name not in as_values]
    by_name: dict[str, object] = {}
    with plain_errors("ONNX Runtime cannot run the model"):
        if as_arrays:
            by_name.update(zip(as_arrays, session.run(as_arrays, run_feeds(feeds)), strict=True))
        if as_values:
            by_name.update(_run_for_bits(session, feeds, as_values))
    return named_arrays([output.name for output in outputs], [by_name[output.name] for output in outputs])


def _run_for_bits(session: onnxruntime.InferenceSession, feeds: RunFeeds, names: Sequence[str]) -> Arrays:
    """Return the outputs `names` of one run, which ONNX Runtime returns as values but not as arrays.

    Sequences it returns as arrays only, so one run cannot return both.
    """
    values = run_to_values(session, feeds, names)
    return {name: widened(array_from_bits(value)) for name, value in zip(names, values, strict=True)}


def run_to_values(
    session: onnxruntime.InferenceSession, feeds: RunFeeds, names: Sequence[str]
) -> Sequence[onnxruntime.OrtValue]:
    """Return the outputs `names`, tensors of any type, in the memory of the host."""
    inputs = {
        name: value_on(contiguous(values)) if isinstance(values, np.ndarray) else values
        for name, values in feeds.items()
    }
    outputs: Sequence[onnxruntime.OrtValue] = session.run_with_ort_values(list(names), inputs)
    return outputs


def host_array(value: onnxruntime.OrtValue, device: Device) -> np.ndarray:
    """Return the elements of `value`, in the memory of `device` or the host, as an array for a run's input.

    Raises:
        ConvswapError: the elements cannot be copied to the host.
    """
    if not lacks_numpy_type(value.data_type()):
        array: np.ndarray = value.numpy()
        return array
    if value.device_name() != "cpu":
        value = _on_host(value, device)
    return array_from_bits(value)


def _on_host(value: onnxruntime.OrtValue, device: Device) -> onnxruntime.OrtValue:
    """Return `value` in the memory of the host, by a run of an Identity, which leaves its output there.

    ONNX Runtime's Python has no other way for types that NumPy does not have.
    """
    x, y = (helper.make_tensor_value_info(name, onnx_type(value.data_type()), None) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    # Opset 19 is the first whose Identity supports all input and output types of Conv; IR version 9 fits it.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    with plain_errors("ONNX Runtime cannot copy a value to the host"):
        (copied,) = make_session(model, DEFAULT, device).run_with_ort_values(["y"], {"x": value})
    return copied
