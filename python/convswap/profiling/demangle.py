"""Readable names of kernels: what the C++ library of the system makes of the compiler's names."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def demangle(name: str) -> str:
    """Return `name` as it stands in the source, with types; `name` itself where it is not a C++ name.

    Also where there is no libstdc++, whose `__cxa_demangle` does the work.
    """
    function = _demangler()
    if function is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    # It allocates the text, which only free of the same C library may take back.
    address = function(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not address:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    _free()(address)
    return text


@cache
def _demangler() -> Any:
    """Return the function of the C++ library, None where there is none."""
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    return function


@cache
def _free() -> Any:
    function = ctypes.CDLL(None).free
    function.argtypes = [ctypes.c_void_p]
    function.restype = None
    return function
