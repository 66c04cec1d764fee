"""The face of a client in another language: a process that is told one verb a line and answers one line each.

What is said is told in README.md (The adapter protocol). One process acts many scenarios, one after another: each
begins with `open` and ends with `close`. It is started when first asked, and anew after it crashed.
"""

import json
import os
import select
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from .server_harness import House
from .target import Answer

REPOSITORY: Final = Path(__file__).parents[2]
ANSWER_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 30.0
READ_BYTES: Final = 65_536


class Adapter:
    """A client's executable, by the name of its language: `command`, run in the repository's folder.

    `able` is what the language can do beside what every client can: `body_stops` where a body can be stopped.
    """

    def __init__(self, name: str, command: tuple[str, ...], *, able: frozenset[str] = frozenset()) -> None:
        self.name: Final = name
        self.able: Final = able
        self._command: Final = command
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""

    def ask(
        self,
        verb: str,
        args: Mapping[str, object],
        move: Callable[[float], None],
        look: Callable[[int], Mapping[str, object]] = lambda _under_way: {},
    ) -> Answer:
        """The answer to a verb; `move` is called with the seconds that the server's clock must go on meanwhile, `look`
        with the number of requests that the client has under way, for how the server stands.

        AssertionError where the client did what no caller may see, ended, or does not answer in real time.
        """
        self._say({"verb": verb, "args": dict(args)})
        while True:
            heard = self._hear()
            if "move_seconds" in heard:
                move(heard["move_seconds"])
                self._say({"moved": True})
            elif "under_way" in heard:
                self._say(look(heard["under_way"]))
            elif "answer" in heard:
                answer: Answer = heard["answer"]
                return answer
            else:
                self._kill()
                raise AssertionError(f"{self.name}: {verb}: {heard.get('crash', heard)}")

    def end(self) -> None:
        """End its input. AssertionError if the process does not end by itself then, and well (SDK-6)."""
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
            raise AssertionError(f"{self.name}: something keeps the process alive after the last scenario") from None
        finally:
            _close(process)
        assert code == 0, f"{self.name}: the process ended with {code}"

    def _say(self, message: Mapping[str, object]) -> None:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            self._kill()
            raise AssertionError(f"{self.name}: {' '.join(self._command)} has ended") from None

    def _start(self) -> subprocess.Popen[bytes]:
        self._heard = b""
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(self._command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, bufsize=0)
        except OSError as error:
            raise AssertionError(f"{self.name}: {self._command[0]} cannot be started: {error}") from error

    def _hear(self) -> dict[str, Any]:
        """The next line. What is waited for is real work, so real time is the judge."""
        assert self._process is not None
        assert self._process.stdout is not None
        while b"\n" not in self._heard:
            answers, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS_MAX)
            read = os.read(self._process.stdout.fileno(), READ_BYTES) if answers else b""
            if not read:
                self._kill()
                what = "has ended: is it built and its language installed?" if answers else "does not answer"
                raise AssertionError(f"{self.name}: {' '.join(self._command)} {what}")
            self._heard += read
        line, _, self._heard = self._heard.partition(b"\n")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _kill(self) -> None:
        """The next verb starts it anew."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _close(process)


class ProcessFace:
    """An adapter acting one scenario: over a listening house, or with None over the fake its client ships."""

    makes_tokens = True

    def __init__(self, adapter: Adapter, house: House | None) -> None:
        self._adapter: Final = adapter
        self._house: Final = house
        self._ask("open", {"fake": True} if house is None else {"api_url": house.url, "service_key": house.service_key})

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        if self._house is not None and verb == "restart":
            answer = self._house.restart()
            self._ask("advance_ms", {"value": 0})
            return answer
        if self._house is not None and verb == "purge":
            return self._house.purge()
        return self._ask(verb, args)

    def advance(self, ms: int) -> None:
        target_ms = self.now_ms() + ms
        self._ask("advance_ms", {"value": ms})
        assert self.now_ms() == target_ms

    def now_ms(self) -> int:
        return int(str(self._ask("now_ms", {})["now_ms"])) if self._house is None else self._house.clock.now_ms()

    def close(self) -> None:
        try:
            self._ask("close", {})
        finally:
            if self._house is not None:
                self._house.close()

    def _ask(self, verb: str, args: Mapping[str, object]) -> Answer:
        return self._adapter.ask(verb, args, self._move, self._look)

    def _look(self, under_way: int) -> Answer:
        assert self._house is not None, "a fake's clock is the adapter's own"
        return {"at_rest": self._house.soon_rests(under_way), "next_due_seconds": self._house.due_in_seconds()}

    def _move(self, seconds: float) -> None:
        assert self._house is not None, "a fake's clock is the adapter's own"
        self._house.follow(seconds)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
