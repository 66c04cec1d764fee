"""The pages of the docs site link to each other, and its navigation names every page."""

import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.site.http_reference import http_page
from docs.site.pages import ATTRIBUTE, FENCED, LINK, copy_pages, rewritten

GENERATED = {"reference/http-api.md", "reference/python.md", "reference/ruby.md"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    copy_pages(folder)
    return folder


def test_every_link_leads_to_a_page_and_every_picture_is_there(pages: Path) -> None:
    def broken() -> Iterator[str]:
        for page in pages.rglob("*.md"):
            for prose in FENCED.split(page.read_text())[::2]:
                for found in (*LINK.finditer(prose), *ATTRIBUTE.finditer(prose)):
                    target = page.parent / found["to"].partition("#")[0]
                    if not target.is_file():
                        yield f"{page.relative_to(pages)} → {found['to']}"

    assert list(broken()) == []


def test_the_navigation_names_every_page(root: Path, pages: Path) -> None:
    def names(nav: object) -> Iterator[str]:
        if isinstance(nav, str):
            yield nav
        elif isinstance(nav, dict):
            yield from names(list(nav.values()))
        elif isinstance(nav, list):
            for one in nav:
                yield from names(one)

    config = tomllib.loads((root / "docs/site/zensical.toml").read_text())
    named = {name for name in names(config["project"]["nav"]) if not name.startswith("reference/javascript/")}
    written = {str(page.relative_to(pages)) for page in pages.rglob("*.md")}
    assert named - GENERATED == {page for page in written if not page.startswith("bench/results/")}


def test_links_follow_a_page_that_moves() -> None:
    sources = {"README.md", "docs/guide/leases.md", "docs/guide/runbooks/README.md", "sdks/python/README.md"}

    def moved(text: str) -> str:
        return rewritten(text, "docs/guide/leases.md", sources)

    assert moved("[a](../../sdks/python/README.md#threads)") == "[a](../clients/python.md#threads)"
    assert moved("[a](runbooks/)") == "[a](runbooks/index.md)"
    assert moved("[a](../../server/pyproject.toml)") == "a", "there is no page, and no address of the repository yet"
    with pytest.raises(FileNotFoundError, match=r"docs/guide/leases.md links to gone.md"):
        moved("[a](gone.md)")
    assert moved("```md\n[a](../../README.md)\n```") == "```md\n[a](../../README.md)\n```"


def test_what_belongs_to_a_numbered_item_stays_in_it() -> None:
    page = rewritten("1. a\n\n   b\n\n```sh\n   c\n```\n", "docs/guide/leases.md", set())
    assert page == "1. a\n\n    b\n\n```sh\n   c\n```\n"


def test_the_http_page_lists_every_operation(openapi: dict[str, dict[str, dict[str, object]]]) -> None:
    text = http_page()
    headings = set(re.findall(r"^### `([A-Z]+) (\S+)`$", text, re.MULTILINE))
    methods = {"get", "post", "put", "patch", "delete"}
    assert headings == {
        (method.upper(), path) for path, item in openapi["paths"].items() for method in methods & set(item)
    }
    anchors = set(re.findall(r"\(#([a-z]+)\)", text))
    assert anchors <= {posixpath.basename(name).lower() for name in openapi["components"]["schemas"]}
