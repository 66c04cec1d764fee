"""The demo runs all its steps, fails if one fails, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from testsupport.engines.processes import BUSY_SECONDS

ROOT = Path(__file__).parents[2]
DEMO: list[str | Path] = [sys.executable, ROOT / "examples" / "demo"]
SECONDS_MAX = 30


def left_behind(mark: Path) -> list[str]:
    """Command lines of processes that have the demo's temporary folder in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(mark) in line:
            found.append(line)
    return found


@pytest.mark.real_time
def test_every_step_succeeds(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        DEMO, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < SECONDS_MAX + BUSY_SECONDS
    assert done.stderr == ""
    assert "refused, the row has a higher fencing token" in done.stdout
    assert "dashboard" in done.stdout.splitlines()[-1]
    assert "\x1b" not in done.stdout, "colour is for terminals"
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        DEMO, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        while "kill -9" not in demo.stdout.readline():
            assert demo.poll() is None
        assert left_behind(tmp_path)
        demo.send_signal(number)
        _, stderr = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number
    assert "Traceback" not in stderr
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_step_ends_with_an_error(tmp_path: Path) -> None:
    """The server is replaced by a program that fails."""
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(ROOT / "examples" / "demo")],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "The demo failed: the server ended with exit code" in done.stderr
    assert "Traceback" not in done.stderr


BROKEN = """
import runpy, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import processes
processes.COMMAND = Path("/bin/false")
runpy.run_path(sys.argv[1], run_name="__main__")
"""
