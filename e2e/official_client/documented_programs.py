"""Runs the programs of `programs/`, which use only the public API, against a real server.

`AcquireFaultProxy` between a program and the server lets the first acquires fail.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfile
from threading import Thread
from typing import Final

import httpx

PROGRAMS: Final = Path(__file__).parent / "programs"
ROOT: Final = PROGRAMS.parents[2]
SECONDS_MAX: Final = 60
LANGUAGES: Final = {
    "python": (sys.executable, "py"),
    "python_asyncio": (sys.executable, "py"),
    "javascript": ("node", "mjs"),
    "ruby": ("ruby", "rb"),
}
"""By folder of programs: the interpreter and the file suffix."""
FAULTS: Final = ("dropped_before", "dropped_after", "answered_503", "answered_503_empty")
SENT_MAX: Final = 2  # the client retries once (SDK-2), after which the outcome is unknown


class AcquireFaultProxy(ThreadingHTTPServer):
    """Forwards requests to `url`. The first SENT_MAX acquires fail with `fault`."""

    daemon_threads = True

    def __init__(self, url: str, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target: Final = url
        self.fault: Final = fault
        self.acquires: Final[list[str]] = []
        self.url: Final = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: AcquireFaultProxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        fault = self.server.fault if len(self.server.acquires) < SENT_MAX else None
        self.server.acquires.append(self.headers["X-Volcano-Lock-Token"])
        match fault:
            case "dropped_before":
                self._body()
                self.close_connection = True
            case "dropped_after":
                self._forwarded()
                self.close_connection = True
            case "answered_503":
                self._body()
                problem = b'{"error": "the store is unavailable", "code": "lock_service_unavailable"}'
                self._respond(503, problem, {"Content-Type": "application/json", "Retry-After": "1"})
            case "answered_503_empty":
                self._body()
                self._respond(503, b"", {})
            case _:
                self._forward()

    def _forward(self) -> None:
        response = self._forwarded()
        passed = {name: one for name, one in response.headers.items() if name not in ("content-length", "date")}
        self._respond(response.status_code, response.content, passed)

    do_GET = do_PATCH = do_DELETE = _forward  # noqa: N815 - names of the standard library

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _forwarded(self) -> httpx.Response:
        headers = {name: one for name, one in self.headers.items() if name.lower() != "host"}
        return httpx.request(self.command, self.server.target + self.path, headers=headers, content=self._body())

    def _respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, one in headers.items():
            self.send_header(name, one)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def faulty_proxy(url: str, fault: str) -> Iterator[AcquireFaultProxy]:
    """A proxy in a thread of its own."""
    with AcquireFaultProxy(url, fault) as proxy:
        serving = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, name="faulty-proxy")
        serving.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            serving.join()


def started(language: str, name: str, url: str, service_key: str, folder: Path) -> "subprocess.Popen[str]":
    """Start a program of `programs/` with the lock's key as its only argument.

    It runs from a copy in the empty `folder`, next to the packages that Node finds there.
    """
    run, ending = LANGUAGES[language]
    program = folder / f"{name}.{ending}"
    copyfile(PROGRAMS / language / program.name, program)
    (folder / "node_modules").mkdir(exist_ok=True)
    package = folder / "node_modules/volcano-locks"
    if not package.exists():
        package.symlink_to(ROOT / "sdks/javascript")
    environment = {name: one for name, one in os.environ.items() if "VOLCANO" not in name}
    environment |= {"VOLCANO_API_URL": url, "VOLCANO_SERVICE_KEY": service_key}
    environment["RUBYLIB"] = str(ROOT / "sdks/ruby/lib")
    return subprocess.Popen(
        [run, program, f"{language}-{name}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(language: str, name: str, url: str, service_key: str, folder: Path) -> list[str]:
    """The lines that a program prints. It must exit by itself with 0 and print nothing on stderr."""
    with started(language, name, url, service_key, folder) as program:
        output, errors = program.communicate(timeout=SECONDS_MAX)
    assert (program.returncode, errors) == (0, ""), f"{language} {name}: {program.returncode}\n{output}{errors}"
    return output.splitlines()
