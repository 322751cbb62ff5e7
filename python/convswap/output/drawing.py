"""Figures of matplotlib, which is imported only where something is drawn."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from convswap.errors import ConvswapError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_matplotlib() -> None:
    """Raise ConvswapError where matplotlib is not installed: before work whose outcome is to be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConvswapError(
            "drawing needs matplotlib, which is not installed: pip install matplotlib"
        ) from error


def new_figure(**options: Any) -> Figure:
    """Return an empty figure, made with matplotlib's `options`.

    Raises:
        ConvswapError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(**options)


def svg_text(figure: Figure) -> str:
    """Return the figure as SVG with its words as text; the same figure gives the same, by one matplotlib."""
    import matplotlib

    content = io.StringIO()
    # Elements are numbered from the salt, not at random.
    as_text = matplotlib.rc_context({"svg.hashsalt": "convswap", "svg.fonttype": "none"})
    with as_text, warnings.catch_warnings():
        # The reader's fonts draw the words, whatever those here lack.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def png(figure: Figure) -> bytes:
    """Return `figure` as the content of a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
