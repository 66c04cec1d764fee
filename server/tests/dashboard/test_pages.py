"""The dashboard's files: complete, small, cached, and without code or addresses of others."""

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

import volcano_locks_server.dashboard
from volcano_locks_server.dashboard.pages import MEDIA_TYPES, Pages
from volcano_locks_server.rules.errors import LockError

ASSETS = Path(volcano_locks_server.dashboard.__file__).parent / "assets"
VENDOR = ASSETS / "vendor"
PACKED_BYTES_MAX = 100_000
SHOWN_IN_EXAMPLES = "volcano-locks"
IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*["']([^"']+)["']""")


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await (await pages.serve(Request(scope, receive)))(scope, receive, send)


pages = Pages()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def own_files() -> list[Path]:
    return [file for file in ASSETS.rglob("*.*") if file.parent != VENDOR]


async def test_the_page_is_revalidated_and_its_files_are_kept(client: httpx.AsyncClient) -> None:
    page = await client.get("/ui")
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-cache")
    again = await client.get("/ui", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert named
    for address in named:
        file = await client.get(f"/{address}")
        assert file.status_code == 200, address
        assert "immutable" in file.headers["cache-control"]


async def test_every_import_has_a_file(client: httpx.AsyncClient) -> None:
    """Also those of packages, which a browser cannot resolve by name without inline code."""
    modules = [address for address in pages.addresses if address.endswith(("js", "mjs"))]
    assert len(modules) > 20
    for address in modules:
        for name in IMPORT.findall((await client.get(address)).text):
            if name == SHOWN_IN_EXAMPLES:
                continue
            assert name.startswith("."), f"{address} imports {name}"
            imported = httpx.URL(f"http://localhost{address}").join(name).path
            assert imported in pages.addresses, f"{address} imports {name}"


async def test_responses_are_compressed_only_for_those_who_accept_it(client: httpx.AsyncClient) -> None:
    plain = await client.get("/ui", headers={"Accept-Encoding": "identity"})
    packed = await client.get("/ui", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert plain.headers["vary"] == "accept-encoding"


async def test_other_addresses_are_not_found(client: httpx.AsyncClient) -> None:
    for path in ("/ui/nothing", "/ui/index.html", pages.addresses[1] + "/..", "/ui/../pages.py"):
        with pytest.raises(LockError, match="no page"):
            await client.get(path)
    moved = await client.get("/ui/")
    assert (moved.status_code, moved.headers["location"]) == (308, "../ui")


async def test_all_files_together_are_small(client: httpx.AsyncClient) -> None:
    size = 0
    for address in pages.addresses:
        size += len(gzip.compress((await client.get(address)).content))
    assert size < PACKED_BYTES_MAX


def test_vendored_files_are_those_of_their_packages() -> None:
    """SHA256SUMS was made from the files of the packages, at the versions that sdks/javascript/package.json pins."""
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    recorded = dict(reversed(line.split("  ")) for line in lines)
    found = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in VENDOR.iterdir()}
    del found["SHA256SUMS"]
    assert found == recorded


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    page = (ASSETS / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", page) == []
    for file in own_files():
        text = file.read_text()
        assert file.suffix[1:] in MEDIA_TYPES, file
        assert [one for one in re.findall(r"https?://[^\s\"'`]+", text) if "www.w3.org" not in one] == [], file
        assert not re.search(r"\beval\(|new Function|innerHTML|dangerouslySetInnerHTML|document\.cookie", text), file


def test_only_the_theme_is_stored_in_the_browser() -> None:
    storing = [
        file.name for file in own_files() if re.search(r"localStorage|sessionStorage|indexedDB", file.read_text())
    ]
    assert storing == ["theme.js"]
