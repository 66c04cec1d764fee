"""CLI-4: Ctrl-C at any moment ends a command with 130 and without a traceback."""

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


def test_an_interrupt_after_the_acquire_is_ignored(key: str, environment: dict[str, str], client: Client) -> None:
    """CLI-10: a client that got its lease must not get exit code 130."""
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
def test_an_interrupt_during_the_imports_is_130(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, "run", "k", "--", "true"], capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, b"", b"")


def interrupt() -> None:
    """Interrupts this thread; a command has no other thread at that point."""
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_the_event_loop_is_created_or_closed_is_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is complete and closed, and the work has started and ended."""
    loops: list[asyncio.AbstractEventLoop] = []
    log: list[str] = []
    new_event_loop, set_event_loop = asyncio.new_event_loop, asyncio.set_event_loop

    def create_loop() -> asyncio.AbstractEventLoop:
        interrupt()
        loops.append(new_event_loop())
        return loops[-1]

    async def work() -> None:
        log.append("started")
        try:
            await asyncio.sleep(600)
        finally:
            log.append("ended")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.events, "new_event_loop", create_loop)
        with pytest.raises(KeyboardInterrupt):
            run_to_end(work)
    assert log == ["started", "ended"]

    def unset_loop(loop: asyncio.AbstractEventLoop | None) -> None:
        interrupt()
        set_event_loop(loop)

    async def short() -> None:
        loops.append(asyncio.get_running_loop())
        patched.setattr(asyncio.events, "set_event_loop", unset_loop)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        run_to_end(short)
    assert [loop.is_closed() for loop in loops] == [True, True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_an_interrupt_the_result_or_error_is_returned() -> None:
    async def found() -> int:
        return 7

    async def missing() -> int:
        raise LookupError

    assert run_to_end(found) == 7
    with pytest.raises(LookupError):
        run_to_end(missing)
