"""The site of docs/ loads nothing from elsewhere, and its lists are complete. `make docs` checks links."""

from __future__ import annotations

import re

import convswap
import pytest
from build_tools import REPOSITORY
from convswap import lab

DOCS = REPOSITORY / "docs"


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".html", '<script src="https://a.example/x.js"></script>'),
        (".html", '<link rel="stylesheet" href="//a.example/x.css">'),
        (".html", '<link rel="preconnect" href="https://a.example">'),
        (".html", '<img alt="" srcset="here.png 1x, https://a.example/x.png 2x">'),
        (".html", '<div style="background: url(https://a.example/x.png)"></div>'),
        (".html", '<pre class="mermaid"><code>graph</code></pre>'),
        (".css", "@import 'https://a.example/x.css';"),
        (".css", "@font-face { src: url(//a.example/x.woff2) }"),
        (".svg", '<svg><image href="https://a.example/x.png"/></svg>'),
    ],
)
def test_an_address_that_a_page_loads_from_another_host_is_found(suffix, text):
    hook = pytest.importorskip("site_hook", reason="`make docs` installs MkDocs", exc_type=ImportError)
    assert len(hook.loaded_from_elsewhere(suffix, text)) == 1


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".html", '<a href="https://a.example">a</a><link rel="canonical" href="https://a.example">'),
        (".html", '<img src="../here.png"><script src="assets/x.js">"https://a.example"</script>'),
        (".css", "/* https://a.example */ a { background: url(data:image/svg+xml,%3Csvg) }"),
        (".svg", '<svg xmlns="http://www.w3.org/2000/svg"><use href="#a"/></svg>'),
    ],
)
def test_links_and_own_files_are_not(suffix, text):
    hook = pytest.importorskip("site_hook", reason="`make docs` installs MkDocs", exc_type=ImportError)
    assert hook.loaded_from_elsewhere(suffix, text) == []


def test_every_word_of_the_glossary_is_on_another_page_and_in_its_place():
    pages = [page for page in [REPOSITORY / "README.md", *DOCS.rglob("*.md")] if page.name != "glossary.md"]
    text = re.sub(r"\s+", " ", " ".join(page.read_text() for page in pages)).lower()
    rows = re.findall(r"^\| (.+?) \| .+\. \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 40 and rows == sorted(rows, key=str.casefold)
    assert [word for word in rows if word.lower() not in text] == []


def test_the_reference_has_every_public_name():
    listed = re.findall(r"^::: (\S+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    public = {f"convswap.{name}" for name in convswap.__all__}
    assert public <= set(listed) and len(listed) == len(set(listed))
    # A process of the lab is for tools that run many kernels.
    assert {f"convswap.tutorial.lab.{name}" for name in lab.__all__ if name != "LabProcess"} <= set(listed)
