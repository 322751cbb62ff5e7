"""Registration of the compiled op library, and of op libraries of others, in ONNX Runtime sessions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError, as_path
from convswap.runtime.packages import load_cuda_libraries

# The folder of the installed package. It has the Python files, the library, the ready-made kernels, the texts
# of the rungs and the C++ files of the lab.
INSTALLED = Path(__file__).parents[1]
OVERRIDE_ENTRY = "convswap.override"
PRECISION_ENTRY = "convswap.precision"
PACK_ENTRY = "convswap.pack"
COMPILE_ENTRY = "convswap.compile"
LAB_ENTRY = "convswap.lab"

# The op libraries that every session loads, from the session of the whole model to those of single nodes.
_IN_USE: ContextVar[tuple[str, ...]] = ContextVar("op_libraries", default=())

OpLibraries = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def library_path() -> Path:
    """Return the path of `libconvswap.so`, which any program that uses ONNX Runtime can register.

    Raises ConvswapError if the package was installed without it.
    """
    path = INSTALLED / "libconvswap.so"
    if not path.is_file():
        raise ConvswapError(f"{path} is missing: the package was not built; run `make` or `pip install .`")
    return path


def set_entry(session_options: Any, key: str, value: str) -> None:
    """Set a session config entry, without ONNX Runtime's warning if it has `value` already."""
    try:
        present = session_options.get_session_config_entry(key)
    except RuntimeError:  # there is no such entry
        present = None
    if present != value:
        session_options.add_session_config_entry(key, value)


def register(
    session_options: Any,
    override: bool = False,
    precision: str | None = None,
    *,
    pack: str | os.PathLike[str] | None = None,
    compiles: bool | None = None,
) -> None:
    """Register the op library in an `onnxruntime.SessionOptions`.

    Models with the op `convswap.Conv` then load in a session made with these options. CUDA libraries that pip
    installed are loaded before, since the CUDA provider does not find them by itself. The registration adds
    WeightBiasQuantization to the entry `optimization.disable_specified_optimizers`, since that optimiser puts
    nodes of its own into the domain of a quantised Conv, also into convswap's. The argument
    `disabled_optimizers` of a session replaces the entry, so it must name WeightBiasQuantization too.

    With `override`, every `Conv` of an unmodified model runs on convswap's op as well. The library then adds
    to the entry `optimization.disable_specified_optimizers` the optimisers of the CPU provider that would
    replace the Conv nodes first, and keeps the optimisers that are in the entry; set the entry before, not
    afterwards. A program in another language sets the session config entry `convswap.override` to 1 before it
    registers the library. Arguments of the session itself can still bypass the override:
    `disabled_optimizers`, which replaces the entry, and the provider option `prefer_nhwc`. `override_session`
    makes the session and checks it.

    `precision` is the precision of overridden nodes, "tf32" or "ieee" (the entry `convswap.precision`). None
    leaves the entry as it is; without an entry the precision is "tf32". Options have one precision for all
    nodes.

    `pack` is a file of `convswap warm` with compiled kernels (the entry `convswap.pack`). With `compiles`
    False no kernel is compiled, and a kernel that is not in the pack is an error (the entry
    `convswap.compile`). None leaves the entries as they are.

    Raises ConvswapError if `precision` comes without `override`, or differs from the precision in the
    options; if the library is missing; or if ONNX Runtime is older than 1.17, with `override` 1.18, or
    refuses the library for another reason.
    """
    path = library_path()
    if precision is not None and not override:
        raise ConvswapError(
            f"precision {precision!r} is of nodes that are overridden: give override=True too, or swap the "
            "model with that precision"
        )
    if override:
        set_entry(session_options, OVERRIDE_ENTRY, "1")
    if precision is not None:
        set_entry(session_options, PRECISION_ENTRY, precision)
    if pack is not None:
        set_entry(session_options, PACK_ENTRY, os.fspath(as_path(pack, "a file of `convswap warm`")))
    if compiles is not None:
        set_entry(session_options, COMPILE_ENTRY, "auto" if compiles else "never")
    load_cuda_libraries("cuda")
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's own exception types are private to it
        reason = str(error).strip().splitlines()[0]
        raise ConvswapError(f"ONNX Runtime did not load {path.name}: {reason}") from error


@contextmanager
def using_op_libraries(files: OpLibraries) -> Iterator[None]:
    """Make all sessions in this context load the op libraries `files`, on both sides.

    Raises:
        ConvswapError: there is no such file, or ONNX Runtime cannot register it.
    """
    import onnxruntime

    # A single path may be a str, which is iterable too.
    listed = files if isinstance(files, Iterable) and not isinstance(files, (str, os.PathLike)) else [files]
    expected = "the file of an op library, such as libops.so, or several"
    # Paths are absolute, since the loader would look for a bare name in the system's folders.
    paths = list(dict.fromkeys(as_path(file, expected).resolve() for file in listed))
    options = onnxruntime.SessionOptions()
    for path in paths:
        if not path.is_file():
            raise ConvswapError(f"there is no op library '{path}'; give the file of one, such as libops.so")
        if path == library_path().resolve():
            raise ConvswapError(
                f"op library '{path}' is convswap's own, which is loaded anyway; leave it out"
            )
        _register(options, str(path))
    token = _IN_USE.set(tuple(map(str, paths)))
    try:
        yield
    finally:
        _IN_USE.reset(token)


def op_libraries_in_use() -> tuple[str, ...]:
    """Return the paths of the op libraries in use, for another process."""
    return _IN_USE.get()


def register_op_libraries(options: Any) -> Any:
    """Register the op libraries in use in `options`, an `onnxruntime.SessionOptions`; return `options`.

    Raises:
        ConvswapError: ONNX Runtime cannot register a library.
    """
    for file in _IN_USE.get():
        _register(options, file)
    return options


def _register(options: Any, file: str) -> None:
    try:
        options.register_custom_ops_library(file)
    except Exception as error:  # onnxruntime's own exception types are private to it
        reason = " ".join(str(error).split())
        raise ConvswapError(
            f"ONNX Runtime cannot register the op library '{file}': {reason}; give a library of custom ops "
            "that is built for this machine"
        ) from error
