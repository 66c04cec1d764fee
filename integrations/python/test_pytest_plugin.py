"""The pytest plugin: its fixtures, in a project that only has the package installed."""

import os
import subprocess
import sys
from pathlib import Path

from integrations.workers import example


def run_pytest(folder: Path, test: str) -> str:
    """Run the tests of a project with the plugin, by the name of its entry point, and with no other plugin."""
    (folder / "test_of_the_project.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "volcano_locks"],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FIXTURES = """
import asyncio

import pytest
from volcano_locks import LockHeldError

@pytest.mark.parametrize("again", [1, 2])
def test_one_server_and_one_clock_per_test(volcano_client, volcano_server, volcano_clock, again):
    first = volcano_client.locks.acquire("a", ttl=5)
    with pytest.raises(LockHeldError):
        volcano_server.client().locks.acquire("a", ttl=5)
    volcano_clock.advance(7)
    assert volcano_server.client().locks.acquire("a", ttl=5).fencing_token > first.fencing_token

def test_asyncio(volcano_async_client, volcano_client):
    assert asyncio.run(volcano_async_client.locks.acquire("a", ttl=5)).fencing_token
    assert volcano_client.locks.get("a").held
"""


def test_the_example_of_the_page_and_every_fixture_work(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(example("pytest.md"))
    assert "5 passed" in run_pytest(tmp_path, FIXTURES)


def test_the_plugin_loads_no_client_in_test_runs_without_locks(tmp_path: Path) -> None:
    test = """
import sys

def test_not_loaded(request):
    assert request.config.pluginmanager.has_plugin("volcano_locks")
    assert not [name for name in sys.modules if name.startswith(("volcano_locks.sync", "volcano_locks.testing", "h11"))]
"""
    assert "1 passed" in run_pytest(tmp_path, test)
