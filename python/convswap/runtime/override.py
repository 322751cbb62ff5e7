"""Unmodified models on convswap's op: a session that overrides every Conv, and the check that it does."""

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
# The optimiser that the library adds to that entry in any session; see custom_op/onnx/session_options.h.
ALWAYS_DISABLED = "WeightBiasQuantization"
RECORD_ASSIGNMENT_ENTRY = "session.record_ep_graph_assignment_info"
# The entry by which the library reports its kernels; see custom_op/onnx/session_options.h.
KERNELS_ENTRY = "convswap.kernels"
# The library truncates names to this length, since ONNX Runtime limits the length of an entry.
_MAX_NAME_LENGTH = 1000
# The domains of ONNX's Conv, of the Conv that the CUDA provider's `prefer_nhwc` makes of it, and of
# convswap's Conv in a partly swapped model, whose kernels the library reports as well.
_CONV_DOMAINS = ("", "ai.onnx", "com.ms.internal.nhwc", "convswap")
# The message of a failure to fold a Conv: ONNX Runtime folds constants with its own CPU kernel, which it does
# not find for an overridden Conv.
_FOLDING_FAILED = "kernel type string 'T' for node type 'Conv'"
_MAX_LISTED = 5
_LOGGER = logging.getLogger("convswap")


def override_session(
    model: str | PathLike[str] | bytes, options: Any = None, *, providers: Any = None, **arguments: Any
) -> Any:
    """Return an `onnxruntime.InferenceSession` in which every Conv of the unmodified `model` is convswap's.

    `model`, `options`, `providers` and `arguments` are those of `InferenceSession`. `options` (a
    `SessionOptions`) and the entries in it are kept, and the library is registered in it. After loading,
    ONNX Runtime's report of the provider of each node is compared with the kernels that the library made.

    If the CUDA provider has `use_tf32=0`, convswap computes in precision `ieee`, unless `options` have an
    entry `convswap.precision`.

    A Conv whose inputs are all constant would fail to load, since ONNX Runtime cannot fold it in the
    override mode; for such a model constant folding is switched off.

    `model` may be in ORT format, with the Convs that it was saved with, and is then read into memory. With
    `register(options, override=True)` alone ONNX Runtime finds no kernel for its Convs.

    Nodes that a tool has put in the place of a Conv, as ONNX Runtime does when it writes an optimised model,
    stay with ONNX Runtime. A warning of the logger `convswap` names up to five of them, their op and the
    reason.

    Raises ConvswapError if a Conv would not run on convswap's op (the message names up to five), the CUDA
    provider has `prefer_nhwc`, ONNX Runtime is older than 1.24, the first version with the report, or the
    session cannot be made.
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
    # As an argument `disabled_optimizers` would replace the entry, and so enable what the library disables.
    _disable_optimizers(options, arguments.pop("disabled_optimizers", None) or ())
    register(options, override=True, precision=_precision_of(options, providers, arguments))
    # ONNX Runtime would silently try again without the provider that failed.
    arguments.setdefault("enable_fallback", 0)
    expected = "the path of an ONNX file, or a model as bytes"
    source = model if isinstance(model, bytes) else fspath(as_path(model, expected))
    loadable, ort_nodes = _loadable_source(source)
    providers = [providers] if isinstance(providers, str) else providers

    def create() -> Any:
        _ask_library("record")
        return onnxruntime.InferenceSession(loadable, options, providers=providers, **arguments)

    try:
        try:
            session = create()
        except Exception as error:  # onnxruntime's own exception types are private to it
            if _FOLDING_FAILED not in str(error):
                raise
            _disable_optimizers(options, ["ConstantFolding"])
            session = create()
    except Exception as error:
        kind = identify_format(read_head(loadable))
        reason = " ".join(str(error).split()) + (f" (it is {kind})" if kind else "")
        raise ConvswapError(f"ONNX Runtime cannot load the model in the override mode: {reason}") from error
    finally:
        kernels_report = _ask_library("read")
    nodes = _placed_nodes(session) if ort_nodes is None else ort_nodes
    _check(session, nodes, _kernel_counts(kernels_report), source)
    _warn_of_others(nodes)
    return session


def _loadable_source(source: str | bytes) -> tuple[str | bytes, list[OrtNode] | None]:
    """Return the source that ONNX Runtime loads for `source`, and the nodes of a model in ORT format.

    ONNX Runtime does not report the provider of each node for models in ORT format.
    """
    if not is_ort_format(read_head(source)):
        return source, None
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        return without_kernel_types(content), list(nodes_of_ort_model(content))
    except DAMAGED_ERRORS:  # ONNX Runtime reports the damage
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
    # Options may stand beside a provider's name, or in a separate list parallel to the list of providers.
    named = [each if isinstance(each, tuple) else (each, {}) for each in providers or ()]
    separate: Sequence[Mapping[str, Any]] = arguments.get("provider_options") or ({},) * len(named)
    for (name, inline_options), separate_options in zip(named, separate, strict=False):
        use_tf32 = {**inline_options, **separate_options}.get("use_tf32", "1")
        if name == "CUDAExecutionProvider" and str(use_tf32) in ("0", "False"):
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
    """Register the library in new options with `request`; return the options, which have its answer."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(KERNELS_ENTRY, request)
    register(options)
    return options


def _kernel_counts(report: Any) -> Counter[str]:
    """Return the number of kernels that the library made for nodes of each name."""
    count = int(report.get_session_config_entry(f"{KERNELS_ENTRY}.count"))
    return Counter(report.get_session_config_entry(f"{KERNELS_ENTRY}.{index}") for index in range(count))


def _check(session: Any, nodes: Sequence[OrtNode], kernels: Counter[str], source: str | bytes) -> None:
    """Raise ConvswapError if a Conv among `nodes` of `session` has no kernel of the library in `kernels`."""
    if session.get_provider_options().get("CUDAExecutionProvider", {}).get("prefer_nhwc") == "1":
        raise ConvswapError(
            "the CUDA provider's option prefer_nhwc takes the Conv nodes before the override sees them: "
            "leave it out, or swap the model instead (convswap.swap)"
        )
    conv_nodes = [
        (node.name, node.ep_name) for node in nodes if node.op_type == "Conv" and node.domain in _CONV_DOMAINS
    ]
    others = _without_kernel(conv_nodes, kernels)
    reported = len(others)
    if others:
        # If ONNX Runtime inlines an op with a body, it reports the body twice: its nodes, which are removed
        # afterwards, and their copies. The model is read only if removed nodes may explain all `others`.
        removed = Counter(map(_key, _convs_of_inlined_bodies(source)))
        others = _without_kernel(others, removed)
    if others:
        listed = _listed([f"{name!r} on {provider}" for name, provider in others])
        count = len(conv_nodes) - (reported - len(others))
        raise ConvswapError(
            f"{len(others)} of {count} Conv nodes would not run on convswap: {listed}; an optimiser "
            "of ONNX Runtime or another provider takes them first: swap the model instead (convswap.swap)"
        )


def _without_kernel(nodes: Iterable[tuple[str, str]], kernels: Counter[str]) -> list[tuple[str, str]]:
    """Return the `nodes`, pairs of name and provider, for which `kernels` has no kernel left."""
    unused = Counter(kernels)
    without = []
    for name, provider in nodes:
        if unused[_key(name)] > 0:
            unused[_key(name)] -= 1
        else:
            without.append((name, provider))
    return without


def _key(name: str) -> str:
    """Return a node's name as the library reports it."""
    return name.encode()[:_MAX_NAME_LENGTH].decode(errors="ignore")


def _convs_of_inlined_bodies(source: str | bytes) -> Iterator[str]:
    """Yield the names of the Convs in bodies of SequenceMap, the only ONNX function that takes a graph.

    Convs in functions of the model are left out, which are inlined before ONNX Runtime assigns providers.
    """
    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else _read(source)
    except Exception:  # the model may be in ORT format
        return
    pending = [model.graph]
    while pending:
        for node in pending.pop().node:
            graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            if node.op_type != "SequenceMap" or node.domain not in ("", "ai.onnx"):
                pending += graphs
                continue
            bodies = (body for graph in graphs for body in graphs_of_proto(graph))
            nodes = (inner for body in bodies for inner in body.node)
            yield from (inner.name for inner in nodes if inner.op_type == "Conv")


def _read(path: str) -> onnx.ModelProto:
    return onnx.load_model(path, format="protobuf", load_external_data=False)


def _warn_of_others(nodes: Iterable[OrtNode]) -> None:
    """Log, in one line for each reason, the `nodes` that a tool has put in the place of Convs."""
    others: dict[str, list[str]] = {}
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        reason = rewritten_conv_reason(domain, node.op_type)
        if reason is not None:
            op = f"{domain}.{node.op_type}" if domain else node.op_type
            others.setdefault(reason, []).append(f"{node.name!r} ({op})")
    for reason, named in others.items():
        message = "these convolutions stay with ONNX Runtime: %s, %d in all; each %s"
        _LOGGER.warning(message, _listed(named), len(named), reason)


def _listed(named: Sequence[str]) -> str:
    return ", ".join(named[:_MAX_LISTED]) + (", ..." if len(named) > _MAX_LISTED else "")
