"""A hook of MkDocs, named in mkdocs.yml: ends the build if a page would load something from another host.

Links to other sites are allowed, since a browser loads them only when the reader follows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_OTHER_HOST = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_CSS_ADDRESS = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
# The values of `rel` of a <link> that a browser does not load.
_NOT_LOADED = {"alternate", "author", "canonical", "help", "license", "next", "prev", "search"}
_LOADING_ATTRIBUTES = ("src", "srcset", "data", "poster", "xlink:href")


def on_post_build(config: Any) -> None:
    """Raise an error that names every address on another host that a page of the site would load."""
    folder = Path(config["site_dir"])
    found = [
        f"{file.relative_to(folder)}: {address}"
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".html", ".css", ".svg")
        for address in loaded_from_elsewhere(file.suffix, file.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("\n".join(["the site would load from other hosts:", *found]))


def loaded_from_elsewhere(suffix: str, text: str) -> list[str]:
    """Return the addresses on other hosts that a browser loads for a file's text."""
    addresses = _CSS_ADDRESS.findall(text)
    if suffix == ".css":
        return addresses
    parser = _Loads()
    parser.feed(text)
    return [*addresses, *parser.addresses]


class _Loads(HTMLParser):
    """Collects addresses on other hosts. Material's script loads diagrams' library, for blocks `mermaid`."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if "mermaid" in attributes.get("class", "").split():
            self.addresses.append("the library of a mermaid diagram")
        self.addresses += [value for value in _loaded(tag, attributes) if _OTHER_HOST.match(value)]


def _loaded(tag: str, attributes: dict[str, str]) -> Iterator[str]:
    """Yield the attributes' values that a browser loads with the page."""
    if tag == "link" and not _NOT_LOADED & set(attributes.get("rel", "").lower().split()):
        yield attributes.get("href", "")
    if tag in ("image", "use"):
        yield attributes.get("href", "")
    for name in _LOADING_ATTRIBUTES:
        yield from (
            re.split(r",\s+", attributes.get(name, "")) if name == "srcset" else [attributes.get(name, "")]
        )
