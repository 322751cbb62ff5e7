"""Unmodified models on our op: a session that overrides every Conv, and the check that it does."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import onnx

from convswap.errors import NO_ONNXRUNTIME, ConvswapError, as_path
from convswap.graph.domain import rewritten_conv_reason
from convswap.graph.file_formats import (
    DAMAGED_ERRORS,
    OrtNode,
    identify_format,
    is_ort_format,
    nodes_of_ort_model,
    read_head,
    without_kernel_types,
)
from convswap.graph.serialisation import graphs_of_proto
from convswap.runtime.library import PRECISION_ENTRY, register, set_entry

DISABLED_OPTIMIZERS_ENTRY = "optimization.disable_specified_optimizers"
# What the library adds to that entry in any session, see custom_op/onnx/session_options.h.
ALWAYS_DISABLED = "WeightBiasQuantization"
RECORD_ASSIGNMENT_ENTRY = "session.record_ep_graph_assignment_info"
# The library's own account of its kernels; see custom_op/onnx/session_options.h.
KERNELS_ENTRY = "convswap.kernels"
# The library cuts names to it, since ONNX Runtime limits the length of an entry.
_LONGEST_NAME = 1000
# ONNX's own Conv, what the CUDA provider's `prefer_nhwc` makes of it, and, for a model that is swapped in
# part, ours, whose kernels are noted as well.
_CONV_DOMAINS = ("", "ai.onnx", "com.ms.internal.nhwc", "convswap")
# ONNX Runtime folds constants with its own kernel, and does not find its way from our op to it.
_FOLDING_FAILED = "kernel type string 'T' for node type 'Conv'"
_SHOWN = 5
_LOGGER = logging.getLogger("convswap")


def override_session(
    model: str | PathLike[str] | bytes, options: Any = None, *, providers: Any = None, **arguments: Any
) -> Any:
    """Return an `onnxruntime.InferenceSession` in which every Conv of the unmodified `model` is ours.

    `model`, `options`, `providers` and `arguments` are those of `InferenceSession`; `options` (a
    `SessionOptions`) and the entries in it are kept, and the library is registered in it. After loading,
    ONNX Runtime's report of which nodes it placed is compared with the kernels that our library made.

    Where the CUDA provider is asked for `use_tf32=0`, our op computes in precision `ieee`, unless `options`
    have an entry `convswap.precision`.

    A Conv whose inputs are all constant would fail to load, since ONNX Runtime cannot fold it in the
    override mode; for such a model constant folding is switched off.

    `model` may be in ORT format, with the Convs that it was saved with, and is then read into memory. With
    `register(options, override=True)` alone ONNX Runtime finds no kernel for its Convs.

    Nodes that a tool has put in the place of a Conv, as ONNX Runtime does when it writes an optimised model,
    stay with ONNX Runtime: a warning of the logger `convswap` names up to five of them, their op and the
    reason.

    Raises ConvswapError where a Conv would not run on our op (named, up to five of them), the CUDA provider
    has `prefer_nhwc`, ONNX Runtime is older than 1.24, the first that keeps the report, or the session
    cannot be made.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConvswapError(NO_ONNXRUNTIME) from error
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise ConvswapError(
            f"ONNX Runtime {onnxruntime.__version__} does not tell which nodes it placed where, 1.24 "
            "or newer does: install that, or use register(options, override=True), which does not check"
        )
    options = onnxruntime.SessionOptions() if options is None else options
    set_entry(options, RECORD_ASSIGNMENT_ENTRY, "1")
    # As an argument it would replace the entry, and with it what the library disables.
    _disable_optimizers(options, arguments.pop("disabled_optimizers", None) or ())
    register(options, override=True, precision=_precision_of(options, providers, arguments))
    # A second attempt, without the provider that failed, would go unnoticed.
    arguments.setdefault("enable_fallback", 0)
    expected = "the path of an ONNX file, or a model as bytes"
    source = model if isinstance(model, bytes) else fspath(as_path(model, expected))
    given, ort_nodes = _of_ort_format(source)
    providers = [providers] if isinstance(providers, str) else providers

    def create() -> Any:
        _ask_library("record")
        return onnxruntime.InferenceSession(given, options, providers=providers, **arguments)

    try:
        try:
            session = create()
        except Exception as error:  # onnxruntime's own exception types are private to it
            if _FOLDING_FAILED not in str(error):
                raise
            _disable_optimizers(options, ["ConstantFolding"])
            session = create()
    except Exception as error:
        kind = identify_format(read_head(given))
        reason = " ".join(str(error).split()) + (f" (it is {kind})" if kind else "")
        raise ConvswapError(f"ONNX Runtime cannot load the model in the override mode: {reason}") from error
    finally:
        answer = _ask_library("read")
    nodes = _placed_nodes(session) if ort_nodes is None else ort_nodes
    _check(session, nodes, _names_of_kernels(answer), source)
    _tell_of_others(nodes)
    return session


def _of_ort_format(source: str | bytes) -> tuple[str | bytes, list[OrtNode] | None]:
    """Return what ONNX Runtime is to load for `source`, and its nodes where it is in ORT format.

    Of such a model ONNX Runtime does not report which nodes it placed where.
    """
    if not is_ort_format(read_head(source)):
        return source, None
    whole = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        return without_kernel_types(whole), list(nodes_of_ort_model(whole))
    except DAMAGED_ERRORS:  # which ONNX Runtime says
        return source, None


def _placed_nodes(session: Any) -> list[OrtNode]:
    """Return the nodes of `session` that ONNX Runtime reports, with their providers."""
    return [
        OrtNode(node.name, node.domain, node.op_type, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def _precision_of(options: Any, providers: Any, arguments: Mapping[str, Any]) -> str | None:
    """Return the precision that the CUDA provider's options ask for; None leaves it as it is."""
    try:
        options.get_session_config_entry(PRECISION_ENTRY)
    except RuntimeError:  # there is no such entry
        pass
    else:
        return None
    # Beside a provider's name, or in a list of their own that goes with that of the providers.
    named = [each if isinstance(each, tuple) else (each, {}) for each in providers or ()]
    own: Sequence[Mapping[str, Any]] = arguments.get("provider_options") or ({},) * len(named)
    for (name, beside), further in zip(named, own, strict=False):
        given = {**beside, **further}.get("use_tf32", "1")
        if name == "CUDAExecutionProvider" and str(given) in ("0", "False"):
            return "ieee"
    return None


def _disable_optimizers(options: Any, names: Iterable[str]) -> None:
    """Add `names` to the optimisers that `options` switch off."""
    try:
        disabled = options.get_session_config_entry(DISABLED_OPTIMIZERS_ENTRY).split(";")
    except RuntimeError:  # there is no such entry
        disabled = []
    wanted = [*disabled, *(name for name in names if name not in disabled)]
    if wanted:
        set_entry(options, DISABLED_OPTIMIZERS_ENTRY, ";".join(wanted))


def _ask_library(request: str) -> Any:
    """Register the library in options of their own that carry `request`; return them, with its answer."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(KERNELS_ENTRY, request)
    register(options)
    return options


def _names_of_kernels(answer: Any) -> Counter[str]:
    """Return how many kernels the library made for nodes of each name."""
    count = int(answer.get_session_config_entry(f"{KERNELS_ENTRY}.count"))
    return Counter(answer.get_session_config_entry(f"{KERNELS_ENTRY}.{index}") for index in range(count))


def _check(session: Any, nodes: Sequence[OrtNode], ours: Counter[str], source: str | bytes) -> None:
    """Raise ConvswapError where a Conv among `nodes` of `session`, made of `source`, is not among `ours`."""
    if session.get_provider_options().get("CUDAExecutionProvider", {}).get("prefer_nhwc") == "1":
        raise ConvswapError(
            "the CUDA provider's option prefer_nhwc takes the Conv nodes before the override sees them: "
            "leave it out, or swap the model instead (convswap.swap)"
        )
    conv_nodes = [
        (node.name, node.ep_name) for node in nodes if node.op_type == "Conv" and node.domain in _CONV_DOMAINS
    ]
    others = _without_kernel(conv_nodes, ours)
    found = len(others)
    if others:
        # ONNX Runtime tells of a body twice where it inlines the op that has it: of its nodes, which are gone
        # afterwards, and of their copies. The model is looked at only where that may be all.
        gone = Counter(map(_key, _convs_of_inlined_bodies(source)))
        others = _without_kernel(others, gone)
    if others:
        named = [f"{name!r} on {provider}" for name, provider in others]
        shown = _shown(named)
        count = len(conv_nodes) - (found - len(others))
        raise ConvswapError(
            f"{len(others)} of {count} Conv nodes would not run on convswap: {shown}; an optimiser "
            "of ONNX Runtime or another provider takes them first: swap the model instead (convswap.swap)"
        )


def _without_kernel(nodes: Iterable[tuple[str, str]], kernels: Counter[str]) -> list[tuple[str, str]]:
    """Return those of `nodes`, each a name and a provider, that are more than `kernels` has of their name."""
    left = Counter(kernels)
    found = []
    for name, provider in nodes:
        if left[_key(name)] > 0:
            left[_key(name)] -= 1
        else:
            found.append((name, provider))
    return found


def _key(name: str) -> str:
    """Return a node's name as the library gives it."""
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")


def _convs_of_inlined_bodies(source: str | bytes) -> Iterator[str]:
    """Yield the names of the Convs in bodies of SequenceMap, ONNX's one function that takes a graph.

    Those in functions of the model are left out: they are inlined before ONNX Runtime places any node.
    """
    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else _read(source)
    except Exception:  # What it has loaded may be no ONNX file, but one in its own format.
        return
    waiting = [model.graph]
    while waiting:
        for node in waiting.pop().node:
            graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            if node.op_type != "SequenceMap" or node.domain not in ("", "ai.onnx"):
                waiting += graphs
                continue
            nodes = (inner for graph in graphs for whole in graphs_of_proto(graph) for inner in whole.node)
            yield from (inner.name for inner in nodes if inner.op_type == "Conv")


def _read(path: str) -> onnx.ModelProto:
    return onnx.load_model(path, format="protobuf", load_external_data=False)


def _tell_of_others(nodes: Iterable[OrtNode]) -> None:
    """Log, in one line for each reason, those of `nodes` that were Convs before a tool took them."""
    others: dict[str, list[str]] = {}
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        reason = rewritten_conv_reason(domain, node.op_type)
        if reason is not None:
            op = f"{domain}.{node.op_type}" if domain else node.op_type
            others.setdefault(reason, []).append(f"{node.name!r} ({op})")
    for reason, named in others.items():
        said = "these convolutions stay with ONNX Runtime: %s, %d in all; each %s"
        _LOGGER.warning(said, _shown(named), len(named), reason)


def _shown(named: Sequence[str]) -> str:
    return ", ".join(named[:_SHOWN]) + (", ..." if len(named) > _SHOWN else "")
