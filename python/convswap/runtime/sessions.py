"""The inference sessions of a comparison: how each side's is made, checked and run."""

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
from convswap.graph.domain import CONVSWAP_OPS, DOMAIN, ONNX_DOMAINS
from convswap.graph.external_weights import AnyModel, Weights, as_split
from convswap.graph.serialisation import copy_of
from convswap.runtime.device import Device
from convswap.runtime.library import register, register_op_libraries, set_entry
from convswap.runtime.memory import freed_at_once
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.override import ALWAYS_DISABLED, DISABLED_OPTIMIZERS_ENTRY
from convswap.runtime.packages import load_cuda_libraries
from convswap.runtime.values import (
    Arrays,
    are_bits,
    array_from_bits,
    contiguous,
    host_value,
    is_number,
    named_arrays,
    onnx_type,
    run_feeds,
    takes_no_array,
    widened,
)

# Makes ONNX Runtime keep which provider took which node (from 1.24 on; ignored before).
_RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_MERGES_EQUAL_NODES = "CommonSubexpressionElimination"
_FORBID_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
# Idle threads of the CPU provider spin for milliseconds after a run. Two sessions that take turns slow each
# other down by it (by 70 % on two cores), so on the CPU both sides stop spinning between runs, which changes
# the time of a session on its own by no more than its noise.
STOP_SPINNING = "session.force_spinning_stop"
_DISABLE_PREPACKING = "session.disable_prepacking"
_NO_SYNCHRONISATION = "disable_synchronize_execution_providers"
# ONNX Runtime 1.31's Python looks this up in the options of every run, and takes 40 us to find that it is not
# there: many times what starting a short run costs. 0 is what it then assumes.
_GRAPH_OF_RUN = ("gpu_graph_id", "0")
# protobuf cannot serialise more.
_LARGEST_MESSAGE = 2_000_000_000


@dataclass(frozen=True, eq=False)
class Side:
    """One way to run a model: its name, whether our library is loaded, options of the provider, and entries
    of the session that our library reads.

    Sides are the constants below, compared by identity.
    """

    name: str
    ours: bool = False
    provider_options: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)

    def with_options(self, options: Mapping[str, str]) -> Side:
        """Return another side with `options` added to those of the provider."""
        return replace(self, provider_options={**self.provider_options, **options})

    def with_entries(self, entries: Mapping[str, str]) -> Side:
        """Return another side with `entries` added to those of the session."""
        return replace(self, entries={**self.entries, **entries})


DEFAULT = Side("default")
CONVSWAP = Side("convswap", ours=True)
# In precision ieee the ops around the Convs must not round to TF32 either, which the provider does by itself.
CONVSWAP_IEEE = Side("convswap", ours=True, provider_options={"use_tf32": "0"})
# What the CUDA provider can be told about Conv, one option at a time.
OTHERS = (
    Side("heuristic", provider_options={"cudnn_conv_algo_search": "HEURISTIC"}),
    Side("no_tf32", provider_options={"use_tf32": "0"}),
    Side("nhwc", provider_options={"prefer_nhwc": "1"}),
)


# What sides a comparison may be asked for.
AGAINST = ("default", "all")
NO_OTHER_SIDE_ON_CPU = "the CPU provider has no options for Conv, so the default is its only side"


def other_sides(device: Device, against: str) -> tuple[Side, ...]:
    """Return the sides besides the default that `against` ("default" or "all") asks for on `device`.

    On the CPU there are none: see `NO_OTHER_SIDE_ON_CPU`.
    """
    return OTHERS if against == "all" and device.name == "cuda" else ()


def our_side(device: Device, precision: str) -> Side:
    """Return our side for `precision` on `device`."""
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

    `only_device` makes it an error when any node would run elsewhere; for models of one node.
    `merges_equal_nodes`: what several nodes compute alike is computed once, as is ONNX Runtime's default.
    `optimizes`: without it ONNX Runtime runs the nodes as they are, with the weights as they are.
    The weights of a model that is split are used where they are on the CPU, and must outlive the session.

    Raises:
        NoKernelError: there is no kernel for a node, with `only_device` on `device`.
        ConvswapError: ONNX Runtime cannot load the model, or the provider of `device` is not in use.
    """
    load_cuda_libraries(device.name)
    split = as_split(model)
    own = split.referenced_weights()
    with session_source(split.message) as source, freed_at_once() if own else nullcontext():
        session = load_session(
            source,
            side,
            device,
            only_device=only_device,
            merges_equal_nodes=merges_equal_nodes,
            optimizes=optimizes,
            weights=own,
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
    """Return a session of what `session_source` gives, for `check_session` to look at.

    This is what a user's own program does for one, our library registered for our side. With
    `profile_prefix`, ONNX Runtime's own profiler is on, and writes to a file whose path begins so. The errors
    and the other arguments are those of `make_session`, whose second part this is.
    """
    options = onnxruntime.SessionOptions()
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    options.log_severity_level = 4  # what fails is raised, and told once
    options.add_session_config_entry(_RECORD_ASSIGNMENT, "1")
    if not merges_equal_nodes:
        # With what our library would add, at which ONNX Runtime would warn.
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
    if side.ours:
        register(options)
    given = [] if weights is None else _give_weights(options, weights, device)
    provider = (device.provider, dict(side.provider_options))
    with plain_errors(f"ONNX Runtime cannot load the model on the {side.name} side"):
        session = onnxruntime.InferenceSession(source, options, providers=[provider], enable_fallback=0)
    # ONNX Runtime keeps addresses of these values, not the values.
    vars(session)["_values_of_weights"] = given
    return session


def _give_weights(
    options: onnxruntime.SessionOptions, weights: Weights, device: Device
) -> list[onnxruntime.OrtValue]:
    """Have a session use `weights`, which are in no message, and return what must live as long as it."""
    values = [value_on(array) for array in weights.values()]
    options.add_external_initializers(list(weights), values)
    if device.name == "cpu":
        # Used where they are. Elsewhere the session needs them in the memory of the device, and copies them.
        for name, value in zip(weights, values, strict=True):
            options.add_initializer(name, value)
    return values


def check_session(session: onnxruntime.InferenceSession, side: Side, device: Device) -> None:
    """Refuse a session that does not run on `device`, or in which a Conv of this side does not.

    ONNX Runtime below 1.24 does not tell of the Convs; there the one-node sessions of the layers, which
    forbid any other provider, are the check.

    Raises:
        ConvswapError: it does not; the message names the first such Conv.
    """
    if device.provider not in session.get_providers():
        raise ConvswapError(
            f"ONNX Runtime could not start its {device.provider} (a library that it needs is missing); "
            "see `convswap doctor`, or use --device cpu"
        )
    report = getattr(session, "get_provider_graph_assignment_info", None)
    if report is None:
        return
    domains, ops = ((DOMAIN,), CONVSWAP_OPS) if side.ours else (ONNX_DOMAINS, ("Conv",))
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
    """Give what ONNX Runtime loads `model` from: its bytes, or a file where they are more than it can read.

    The file is there until the context ends.

    Raises:
        ConvswapError: the model cannot be written.
    """
    with ExitStack() as stack:
        with plain_errors("the model cannot be prepared for ONNX Runtime"):
            source = _written(model, stack)
        yield source


def _written(model: onnx.ModelProto, stack: ExitStack) -> bytes | str:
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < _LARGEST_MESSAGE:
        return model.SerializeToString()
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="convswap-"))) / "model.onnx"
    copy = copy_of(model)
    onnx.save_model(copy, path, save_as_external_data=True, location="model.data")
    return str(path)


class BoundRun:
    """A session with its inputs on the device and its outputs left there, ready to be run and timed.

    `outputs` names those that are computed, in the session's order.
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
        self._unsynchronised.add_run_config_entry(*_GRAPH_OF_RUN)
        for name, value in feeds.items():
            self._binding.bind_ortvalue_input(name, value)
        self._places: dict[str, str] = {}
        self._makes_room_each_time = False
        for output in session.get_outputs():
            if outputs is None or output.name in outputs:
                numeric = output.type.startswith("tensor(") and output.type != "tensor(string)"
                self._places[output.name] = device.name if numeric else "cpu"
        self._bind_outputs()

    @property
    def outputs(self) -> list[str]:
        """The names of what is computed."""
        return list(self._places)

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
        if self._makes_room_each_time:
            self._bind_outputs()
        try:
            self._session.run_with_iobinding(self._binding, *options)
        except Exception:  # ONNX Runtime's exceptions have no common class but this one.
            if self._makes_room_each_time:
                raise
            # A run writes to where the last one did. ONNX Runtime refuses that where an output has not the
            # shape that the model declares, or another one in each run.
            self._makes_room_each_time = True
            self._bind_outputs()
            self._session.run_with_iobinding(self._binding, *options)

    def _bind_outputs(self) -> None:
        for name, place in self._places.items():
            self._binding.bind_output(name, place, 0)

    def wait(self) -> None:
        """Wait for all runs that were started."""
        self._binding.synchronize_outputs()

    def values(self) -> list[onnxruntime.OrtValue]:
        """Return the outputs of the last run, where they are, in the order of `outputs`."""
        return self._binding.get_outputs()


def on_device(feeds: Mapping[str, np.ndarray], device: Device) -> dict[str, onnxruntime.OrtValue]:
    """Return `feeds` as values to bind, in the memory of `device`.

    For a card, ONNX Runtime loads its CUDA provider here where no session has yet, and needs its libraries.
    What `host_value` makes is on the host, and gets to the device when it is bound, once.

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
    """Return a value on the memory of `array` itself, which is contiguous and must outlive it."""
    return _value(array, "cpu")


def _value(array: np.ndarray, device: str) -> onnxruntime.OrtValue:
    if takes_no_array(array):
        return host_value(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0)


def run(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the numeric outputs of one run, sequences and maps taken apart.

    Raises:
        ConvswapError: the run fails, or no output has numbers.
    """
    arrays = [values for values in run_named(session, feeds).values() if is_number(values)]
    if not arrays:
        raise ConvswapError("the model has no output with numbers; expected at least one")
    return arrays


def run_named(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Return the outputs of one run by name, sequences, optionals and maps taken apart.

    Raises:
        ConvswapError: the run fails.
    """
    outputs = session.get_outputs()
    of_bits = [output.name for output in outputs if are_bits(output.type)]
    others = [output.name for output in outputs if output.name not in of_bits]
    held: dict[str, object] = {}
    with plain_errors("ONNX Runtime cannot run the model"):
        if others:
            held.update(zip(others, session.run(others, run_feeds(feeds)), strict=True))
        if of_bits:
            held.update(_run_for_bits(session, feeds, of_bits))
    return named_arrays([output.name for output in outputs], [held[output.name] for output in outputs])


def _run_for_bits(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray], names: Sequence[str]
) -> Arrays:
    """Return the outputs called `names`, which ONNX Runtime gives as values but not as arrays, from one run.

    Of sequences it is the other way round, so that one run cannot give both.
    """
    values = run_to_values(session, feeds, names)
    return {name: widened(array_from_bits(value)) for name, value in zip(names, values, strict=True)}


def run_to_values(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray], names: Sequence[str]
) -> Sequence[onnxruntime.OrtValue]:
    """Return the outputs called `names`, tensors of any type, in the memory of the host."""
    fed = {name: value_on(contiguous(values)) for name, values in feeds.items()}
    values: Sequence[onnxruntime.OrtValue] = session.run_with_ort_values(list(names), fed)
    return values


def host_array(value: onnxruntime.OrtValue, device: Device) -> np.ndarray:
    """Return the elements of `value`, in the memory of `device` or of the host, as a run can be fed them.

    Raises:
        ConvswapError: they cannot be copied to the host.
    """
    if not are_bits(value.data_type()):
        array: np.ndarray = value.numpy()
        return array
    if value.device_name() != "cpu":
        value = _on_host(value, device)
    return array_from_bits(value)


def _on_host(value: onnxruntime.OrtValue, device: Device) -> onnxruntime.OrtValue:
    """Return `value` in the memory of the host, where a run leaves its outputs.

    ONNX Runtime's Python has no other way for what NumPy has no type for.
    """
    ends = [helper.make_tensor_value_info(name, onnx_type(value.data_type()), None) for name in ("x", "y")]
    same = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", ends[:1], ends[1:])
    # The first opset whose Identity knows all that a Conv may be fed or computes, and the format of its time.
    model = helper.make_model(same, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    with plain_errors("ONNX Runtime cannot copy a value to the host"):
        (copied,) = make_session(model, DEFAULT, device).run_with_ort_values(["y"], {"x": value})
    return copied
