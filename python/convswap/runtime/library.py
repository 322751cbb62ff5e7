"""The compiled op library, and those of others that a model may need: how a session loads them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError, as_path

# The installed package: its Python files, the library, the ready-made kernels, the texts of the rungs and the
# C++ files of the lab.
INSTALLED = Path(__file__).parents[1]
OVERRIDE_ENTRY = "convswap.override"
PRECISION_ENTRY = "convswap.precision"
PACK_ENTRY = "convswap.pack"
COMPILE_ENTRY = "convswap.compile"
LAB_ENTRY = "convswap.lab"

# A session is made in many places for one answer, down to those of a single node, and each needs them.
_IN_USE: ContextVar[tuple[str, ...]] = ContextVar("op_libraries", default=())

OpLibraries = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def library_path() -> Path:
    """Return the path of `libconvswap.so`, which any program that uses ONNX Runtime can register.

    Raises ConvswapError where the package was installed without it.
    """
    path = INSTALLED / "libconvswap.so"
    if not path.is_file():
        raise ConvswapError(f"{path} is missing: the package was not built; run `make` or `pip install .`")
    return path


def set_entry(session_options: Any, key: str, value: str) -> None:
    """Set a session config entry, without ONNX Runtime's warning where it holds `value` already."""
    try:
        held = session_options.get_session_config_entry(key)
    except RuntimeError:  # there is no such entry
        held = None
    if held != value:
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

    After it, models with the op `convswap.Conv` load in a session made with these options. To the entry
    `optimization.disable_specified_optimizers` it adds WeightBiasQuantization, which puts nodes of its own
    into the domain of a quantised Conv, whatever that is; the argument `disabled_optimizers` of a session
    replaces the entry, and then has to name it too.

    With `override`, every `Conv` of an unmodified model runs on our op as well. The library then adds to the
    entry `optimization.disable_specified_optimizers`, beside what it holds already, the optimisers of the CPU
    provider that would take the Conv nodes first; set the entry before, not afterwards. A program in another
    language gets the same by setting the session config entry `convswap.override` to 1 before it registers
    the library. Arguments of the session itself can still bypass the override (`disabled_optimizers`, which
    replaces that entry; the provider option `prefer_nhwc`): `override_session` makes the session and checks.

    `precision` is that of the nodes which it overrides: "tf32", or "ieee" (the entry `convswap.precision`);
    None leaves the entry as it is, and "tf32" where there is none. One set of options has one precision.

    `pack` is a file of `convswap warm` that kernels are taken from (the entry `convswap.pack`), and with
    `compiles` False no other is compiled: what the pack lacks is an error (the entry `convswap.compile`).
    None leaves the entries as they are.

    Raises ConvswapError where `precision` comes without `override`, or is another than these options have;
    where the library is missing; or where ONNX Runtime is older than 1.17, with `override` 1.18, or refuses
    the library for another reason.
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
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's own exception types are private to it
        reason = str(error).strip().splitlines()[0]
        raise ConvswapError(f"ONNX Runtime did not load {path.name}: {reason}") from error


@contextmanager
def sessions_with(files: OpLibraries) -> Iterator[None]:
    """Have all sessions that are made in this context load the libraries `files`, on both sides.

    Raises:
        ConvswapError: there is no such file, or ONNX Runtime cannot register it.
    """
    import onnxruntime

    # One path is no sequence of letters.
    named = files if isinstance(files, Iterable) and not isinstance(files, (str, os.PathLike)) else [files]
    expected = "the file of an op library, such as libops.so, or several"
    # With a folder, since the loader would look for a bare name in the system's.
    paths = list(dict.fromkeys(as_path(file, expected).resolve() for file in named))
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
    """Return the paths of the libraries in use, to be named to another process."""
    return _IN_USE.get()


def register_op_libraries(options: Any) -> Any:
    """Register the libraries in use in `options`, an `onnxruntime.SessionOptions`, and return these.

    Raises:
        ConvswapError: ONNX Runtime cannot.
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
