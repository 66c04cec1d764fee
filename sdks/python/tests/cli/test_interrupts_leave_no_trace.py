"""CLI-4: Ctrl-C at any moment ends a command with 130, and with no words but its own."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from volcano_locks import Client, Lease
from volcano_locks.cli.event_loop import run_to_end

INTERRUPTED_IMPORT = """
import sys
module = sys.argv.pop(1)
class Interrupting:
    def find_spec(self, name, *_):
        if name == module:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from volcano_locks.cli import main
main()
"""

INTERRUPTED_AT_ITS_END = """
import atexit, os, signal
from volcano_locks.cli import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""


def test_once_it_is_done_it_has_been_done(key: str, environment: dict[str, str], client: Client) -> None:
    """CLI-10: whoever is handed a lease is not told that the acquire was interrupted."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_ITS_END, "acquire", key],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    client.locks.release(key, Lease.from_record(json.loads(ended.stdout)))


@pytest.mark.parametrize("module", ["volcano_locks.cli.app", "click", "volcano_locks.cli.run.command"])
def test_while_it_is_still_being_loaded(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, "run", "k", "--", "true"], capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, b"", b"")


def interrupt() -> None:
    """For this thread: a command has no other by then, but the tests have."""
    signal.raise_signal(signal.SIGINT)


def test_while_its_event_loop_is_being_made_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is whole and closed, and the work has begun and ended."""
    loops: list[asyncio.AbstractEventLoop] = []
    lived: list[str] = []
    new_event_loop, set_event_loop = asyncio.new_event_loop, asyncio.set_event_loop

    def made() -> asyncio.AbstractEventLoop:
        interrupt()
        loops.append(new_event_loop())
        return loops[-1]

    async def work() -> None:
        lived.append("begun")
        try:
            await asyncio.sleep(600)
        finally:
            lived.append("ended")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.events, "new_event_loop", made)
        with pytest.raises(KeyboardInterrupt):
            run_to_end(work)
    assert lived == ["begun", "ended"]

    def unset(loop: asyncio.AbstractEventLoop | None) -> None:
        interrupt()
        set_event_loop(loop)

    async def short() -> None:
        loops.append(asyncio.get_running_loop())
        patched.setattr(asyncio.events, "set_event_loop", unset)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        run_to_end(short)
    assert [loop.is_closed() for loop in loops] == [True, True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_not_interrupted_returns_and_raises_as_it_does() -> None:
    async def found() -> int:
        return 7

    async def missing() -> int:
        raise LookupError

    assert run_to_end(found) == 7
    with pytest.raises(LookupError):
        run_to_end(missing)
