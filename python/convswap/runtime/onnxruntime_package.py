"""Whether the installed onnxruntime is whole: one installed or removed halfway cannot be used."""

from __future__ import annotations

NAME = "onnxruntime"


def why_broken() -> str:
    """Return what is wrong with the installed onnxruntime, in one line; "" where it is whole or absent."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        return "" if error.name == NAME else str(error)
    except Exception as error:  # it passes on whatever its compiled part raises
        return " ".join(str(error).split()) or type(error).__name__
    if hasattr(onnxruntime, "InferenceSession"):
        return ""
    # Python takes any folder of the name for a module, one with nothing in it too.
    folders = [str(folder) for folder in getattr(onnxruntime, "__path__", ())]
    return f"{' and '.join(folders) or NAME} does not hold all of it"
