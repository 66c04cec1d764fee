"""The target of a client in another language: a process that reads one verb a line and writes one result a line.

README.md describes the adapter protocol. One process acts out many scenarios, one after another: each begins with
`open` and ends with `close`. The process is started with the first verb, and again after a crash.
"""

import json
import os
import select
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from .proxied_server import ProxiedServer
from .target import Result

RACERS: Final = "racers"
REPOSITORY: Final = Path(__file__).parents[2]
RESPONSE_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 30.0
READ_BYTES: Final = 65_536


class Adapter:
    """A client's executable: `command` runs in the repository's folder, `name` is its language.

    `abilities` names what this language can do and others cannot: `body_stops` if a block's body can be stopped.
    """

    def __init__(self, name: str, command: tuple[str, ...], *, abilities: frozenset[str] = frozenset()) -> None:
        self.name: Final = name
        self.abilities: Final = abilities
        self._command: Final = command
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def ask(
        self,
        verb: str,
        args: Mapping[str, object],
        move: Callable[[float], None] = lambda _seconds: None,
        look: Callable[[], Mapping[str, object]] = dict,
    ) -> Result:
        """The result of a verb.

        `move` is called with the seconds by which the server's clock must advance meanwhile. `look` returns the state
        of network and server, see `FaultProxy.state`. Raises AssertionError if the adapter reports a crash, has ended,
        or does not respond within RESPONSE_SECONDS_MAX of real time.
        """
        self._write({"verb": verb, "args": dict(args)})
        while True:
            message = self._read()
            if "move_seconds" in message:
                move(message["move_seconds"])
                self._write({"moved": True})
            elif "look" in message:
                self._write(look())
            elif "answer" in message:
                result: Result = message["answer"]
                return result
            else:
                self._kill()
                raise AssertionError(f"{self.name}: {verb}: {message.get('crash', message)}")

    def end(self) -> None:
        """Close its input. AssertionError if the process does not then exit by itself with 0 (SDK-6)."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            code = process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name}: the process does not exit after the last scenario") from None
        finally:
            _close(process)
        assert code == 0, f"{self.name}: the process exited with {code}"

    def _write(self, message: Mapping[str, object]) -> None:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            self._kill()
            raise AssertionError(f"{self.name}: {' '.join(self._command)} has ended") from None

    def _start(self) -> subprocess.Popen[bytes]:
        self._buffer = b""
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(self._command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, bufsize=0)
        except OSError as error:
            raise AssertionError(f"{self.name}: {self._command[0]} cannot be started: {error}") from error

    def _read(self) -> dict[str, Any]:
        """The next message. The adapter does real work meanwhile, so the limit is in real time."""
        assert self._process is not None
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], RESPONSE_SECONDS_MAX)
            read = os.read(self._process.stdout.fileno(), READ_BYTES) if ready else b""
            if not read:
                self._kill()
                what = "has ended: is it built, and is its language installed?" if ready else "does not respond"
                raise AssertionError(f"{self.name}: {' '.join(self._command)} {what}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _kill(self) -> None:
        """Kill the process; the next verb starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _close(process)


class AdapterFakeTarget:
    """One scenario on an adapter, over the fake that its client ships. There is no network that could fail."""

    makes_tokens = True

    def __init__(self, adapter: Adapter) -> None:
        self._adapter: Final = adapter
        self._actors: Final[set[str]] = set()
        self._ask("open", self._opening())

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        """Act out the verb. Before an actor's first verb, `client` creates its client."""
        actor = str(args.get("actor", RACERS if verb == "race" else ""))
        if actor and actor not in self._actors:
            self._actors.add(actor)
            self._ask("client", {"actor": actor, **self._address(actor)})
        return self._ask(verb, args)

    def advance(self, ms: int) -> None:
        target_ms = self.now_ms() + ms
        self._ask("advance_ms", {"value": ms})
        assert self.now_ms() == target_ms

    def now_ms(self) -> int:
        return int(str(self._ask("now_ms", {})["now_ms"]))

    def close(self) -> None:
        self._ask("close", {})

    def _opening(self) -> Mapping[str, object]:
        return {"fake": True}

    def _address(self, _actor: str) -> Mapping[str, object]:
        return {}

    def _ask(self, verb: str, args: Mapping[str, object]) -> Result:
        return self._adapter.ask(verb, args)


class AdapterTarget(AdapterFakeTarget):
    """One scenario on an adapter, over a listening server behind a fault proxy."""

    def __init__(self, adapter: Adapter, server: ProxiedServer) -> None:
        self._server: Final = server
        super().__init__(adapter)

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        if verb not in ProxiedServer.VERBS:
            return super().do(verb, args)
        result = self._server.do(verb, args)
        self._ask("advance_ms", {"value": 0})
        return result

    def now_ms(self) -> int:
        return self._server.now_ms()

    def close(self) -> None:
        try:
            self._server.proxy.clear_faults()
            super().close()
        finally:
            self._server.close()

    def _opening(self) -> Mapping[str, object]:
        return {"service_key": self._server.service_key}

    def _address(self, actor: str) -> Mapping[str, object]:
        return {"api_url": self._server.proxy.url(actor)}

    def _ask(self, verb: str, args: Mapping[str, object]) -> Result:
        proxy = self._server.proxy
        return self._adapter.ask(verb, args, proxy.follow, lambda: proxy.state()._asdict())


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
