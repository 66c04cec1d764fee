"""Marks and guards for the whole test suite: which tests start engines, and which share a worker."""

import os
import sys
import threading
import time
import traceback

import pytest
from testsupport.engines.processes import WITHOUT_ENGINES

ENGINES = ("postgres", "etcd", "mariadb", "mysql", "pgbouncer", "nginx", "haproxy")
GROUPS = ("e2e/packaging/", "e2e/many_nodes/", "e2e/dashboard/")
ALONE = ("e2e/many_nodes/test_date_steps.py",)
"""Folders whose tests run in one worker of pytest-xdist: they share expensive fixtures, or load the machine too much.

The largest groups start first, so their waiting overlaps with the other tests. ALONE are files of these folders whose
tests share nothing, and mostly wait.
"""
THREAD_END_SECONDS = 15
LONG = "simulation/tests/test_seeds.py"
"""Its tests start before the others outside of these folders, so that the run does not end with one of them."""


def pytest_configure(config: pytest.Config) -> None:
    if "not engines" in config.option.markexpr:  # a test that starts one without the mark must fail
        os.environ[WITHOUT_ENGINES] = "1"


@pytest.hookimpl(tryfirst=True)  # before the selection by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of server, conformance or e2e that names an engine in its id starts it."""
    for item in items:
        if not item.nodeid.startswith("sdks/") and any(engine in item.nodeid.lower() for engine in ENGINES):
            item.add_marker(pytest.mark.engines)
        for folder in GROUPS:
            if item.nodeid.startswith(folder) and not item.nodeid.startswith(ALONE):
                item.add_marker(pytest.mark.xdist_group(folder))
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A thread that a test leaves behind would keep its process, and so the whole run, from ending: the run fails."""
    if left := threads_left():
        message = "a test left threads that do not end:\n" + "\n".join(left)
        if (output := getattr(session.config, "workeroutput", None)) is None:
            session.shouldfail = message
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        else:  # what xdist passes on to the main process
            output["shouldfail"] = message


def threads_left() -> list[str]:
    """The stacks of the threads for which the interpreter would wait."""
    deadline = time.monotonic() + THREAD_END_SECONDS
    waited_for = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    for thread in waited_for:
        thread.join(max(0.0, deadline - time.monotonic()))
    frames = sys._current_frames()
    return [
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in waited_for
        if thread.ident in frames
    ]
