"""Sessions of ONNX Runtime whose threads sleep while they wait, and do not spin.

By itself each of a session's threads looks for work for a while before it sleeps. Where tests share the
cores, it looks on the time of those who would give it some: a quarter of what tests of sessions took.
"""

from __future__ import annotations

from typing import Any

import onnxruntime

_KEYS = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")


def let_waiting_threads_sleep() -> None:
    """Have every session of this process made so, but where its maker says something of it.

    Options that a session is given get the entries, too: they cannot be copied.
    """
    make = onnxruntime.InferenceSession.__init__

    def make_quiet(
        self: Any, path_or_bytes: Any, sess_options: Any = None, *arguments: Any, **options: Any
    ) -> None:
        own = sess_options or onnxruntime.SessionOptions()
        for key in _KEYS:
            if not _has(own, key):
                own.add_session_config_entry(key, "0")
        make(self, path_or_bytes, own, *arguments, **options)

    onnxruntime.InferenceSession.__init__ = make_quiet


def _has(options: Any, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True
