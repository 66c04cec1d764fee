"""Serves the dashboard's files from memory.

All files except the page are below a directory named after the digest of all of them, so that browsers may keep them
for ever, and a new version of the server has new addresses. The page itself is revalidated with each load.
"""

import gzip
import hashlib
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ..rules.errors import LockError
from ..rules.values import shown

ROOT: Final = "/ui"
DIRECTORY_IN_PAGE: Final = b"{{directory}}"
DIGITS: Final = 12
ETAG_DIGITS: Final = 32

# The names that the modules import, and the file of each in assets/.
IMPORTS: Final = {
    b"preact": b"vendor/preact.mjs",
    b"preact/hooks": b"vendor/preact-hooks.mjs",
    b"@preact/signals": b"vendor/signals.mjs",
    b"@preact/signals-core": b"vendor/signals-core.mjs",
    b"htm": b"vendor/htm.mjs",
}
_IMPORT: Final = re.compile(rb"""\bfrom\s*"(%b)\"""" % b"|".join(sorted(map(re.escape, IMPORTS), reverse=True)))

MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class _File(NamedTuple):
    headers: dict[str, str]
    body: bytes
    packed: bytes
    etag: str


class Pages:
    """All files of the dashboard, read once."""

    def __init__(self) -> None:
        sources = _sources(files(__package__) / "assets")
        digest = hashlib.sha256()
        for name, body in sorted(sources.items()):
            digest.update(b"%d %b %d " % (len(name), name.encode(), len(body)) + body)
        directory = f"{ROOT}/{digest.hexdigest()[:DIGITS]}"
        page = sources.pop("index.html").replace(DIRECTORY_IN_PAGE, directory[1:].encode())
        self._files: Final = {ROOT: _file("index.html", page, "no-cache")}
        for name, body in sources.items():
            self._files[f"{directory}/{name}"] = _file(name, body, "public, max-age=31536000, immutable")

    @property
    def addresses(self) -> list[str]:
        """The path of each file."""
        return list(self._files)

    async def serve(self, request: Request) -> Response:
        """The response to a GET of a file or of the page. Raises LockError `not_found`.

        The caller refuses other methods, and adds the header fields that all responses under `/ui` have (UI-9).
        """
        path = request.url.path
        if path == ROOT + "/":
            # Relative, because a proxy may serve this server below a path of its own.
            return Response(status_code=308, headers={"location": "../ui"})
        file = self._files.get(path)
        if file is None:
            raise LockError("not_found", f"the dashboard has no page {shown(path)}: its address is {ROOT}")
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=file.headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers={**file.headers, "content-encoding": "gzip"})
        return Response(file.body, headers=file.headers)


def _sources(directory: Traversable, under: str = "") -> dict[str, bytes]:
    """The content of each file that is served, by its name below `directory`."""
    found: dict[str, bytes] = {}
    for entry in directory.iterdir():
        if entry.is_dir():
            found |= _sources(entry, f"{under}{entry.name}/")
        elif _suffix(entry.name) in MEDIA_TYPES:
            found[under + entry.name] = _resolved(under, entry.read_bytes())
    return found


def _resolved(under: str, body: bytes) -> bytes:
    """A module with the file of each package that it imports. Browsers need an inline import map for names."""
    up = b"../" * under.count("/") or b"./"
    return _IMPORT.sub(lambda found: b'from"%b%b"' % (up, IMPORTS[found[1]]), body)


def _file(name: str, body: bytes, cache_control: str) -> _File:
    etag = f'"{hashlib.sha256(body).hexdigest()[:ETAG_DIGITS]}"'
    headers = {
        "content-type": MEDIA_TYPES[_suffix(name)],
        "cache-control": cache_control,
        "etag": etag,
        "vary": "accept-encoding",
    }
    return _File(headers, body, gzip.compress(body, mtime=0), etag)


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]
