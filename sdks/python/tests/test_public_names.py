"""The names that `volcano_locks` exports, and what importing it loads."""

import subprocess
import sys

import pytest

import volcano_locks
from volcano_locks import Lease


def test_importing_the_package_and_its_errors_does_not_load_the_http_stack() -> None:
    """A command line that only needs the errors starts fast."""
    code = "import sys, volcano_locks.errors, volcano_locks.protocol.messages; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"h11", "asyncio", "ssl"} & set(loaded)


def test_every_public_name_exists_and_no_other() -> None:
    assert {name for name in volcano_locks.__all__ if getattr(volcano_locks, name) is None} == set()
    assert set(volcano_locks.__all__) <= set(dir(volcano_locks))
    assert volcano_locks.Lease is Lease
    with pytest.raises(AttributeError, match="no attribute 'Mutex'"):
        _ = volcano_locks.Mutex
