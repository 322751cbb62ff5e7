"""Figures of matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from convswap.errors import ConvswapError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_matplotlib() -> None:
    """Raise ConvswapError if matplotlib is not installed; called before long work that ends in a drawing."""
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
    """Return the figure as SVG with text elements; reproducible with the same matplotlib version."""
    import matplotlib

    content = io.StringIO()
    # With a fixed salt, the ids of elements are not random.
    as_text = matplotlib.rc_context({"svg.hashsalt": "convswap", "svg.fonttype": "none"})
    with as_text, warnings.catch_warnings():
        # The viewer's fonts draw the text, so glyphs that are missing here do not matter.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def png(figure: Figure) -> bytes:
    """Return `figure` as the content of a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
