"""Makes threads of ONNX Runtime's sessions sleep instead of spin while they wait.

By default a session's threads spin before they sleep. With tests sharing the cores, spinning took a quarter
of the time of session tests.
"""

from __future__ import annotations

from typing import Any

import onnxruntime

_KEYS = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")


def let_waiting_threads_sleep() -> None:
    """Turn spinning off in all later sessions of this process whose options do not set it.

    The entries are added to the caller's options, since options cannot be copied.
    """
    make = onnxruntime.InferenceSession.__init__

    def make_quiet(
        self: Any, path_or_bytes: Any, sess_options: Any = None, *arguments: Any, **options: Any
    ) -> None:
        sess_options = sess_options or onnxruntime.SessionOptions()
        for key in _KEYS:
            if not _has(sess_options, key):
                sess_options.add_session_config_entry(key, "0")
        make(self, path_or_bytes, sess_options, *arguments, **options)

    onnxruntime.InferenceSession.__init__ = make_quiet


def _has(options: Any, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True
