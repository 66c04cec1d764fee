"""Programs that use only the public API do what its documentation says, in each language.

Each language has the same programs, which print the same lines.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from volcano_locks_server.testing import RunningServer, running_server

from .documented_programs import FAULTS, LANGUAGES, SECONDS_MAX, faulty_proxy, finished, started

PRINTED = {
    "block": ["fencing token N", "lost: false", "held: false"],
    "by_hand": ["same token: true", "released"],
    "get_and_force": ["held: true", "held: false", "lost: true"],
    "contention": ["held elsewhere"],
}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with running_server() as one:
        yield one


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", PRINTED)
def test_a_documented_program_runs_unchanged(running: RunningServer, language: str, name: str, tmp_path: Path) -> None:
    """SDK-17, SDK-21, HTTP-1."""
    lines = finished(language, name, running.url, running.service_key, tmp_path)
    assert [re.sub(r"token \d{13,16}$", "token N", line) for line in lines] == PRINTED[name]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_rate_limit_error_has_whole_seconds(language: str, tmp_path: Path) -> None:
    """SDK-9, QUOTA-4."""
    with running_server() as limited:
        headers = {"Authorization": f"Bearer {limited.admin_token}"}
        project = f"{limited.url}/projects/{limited.project_id}"
        httpx.patch(project, headers=headers, json={"requests_per_minute": 5}).raise_for_status()
        (line,) = finished(language, "rate_limit", limited.url, limited.service_key, tmp_path)
        found = re.fullmatch(r"retry after (\d+) seconds", line)
        assert found is not None, line
        assert 1 <= int(found[1]) <= 60


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_ids_recover_an_acquire_with_an_unknown_outcome(
    running: RunningServer, language: str, fault: str, tmp_path: Path
) -> None:
    """SDK-18, case 50."""
    with faulty_proxy(running.url, fault) as proxy:
        assert finished(language, "recover", proxy.url, running.service_key, tmp_path) == [
            "uncertain",
            "recovered",
            "released",
        ]
        assert len(proxy.acquires) == 3
        assert len(set(proxy.acquires)) == 1


@pytest.mark.real_time
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_that_only_waits_for_the_loss_sees_it(running: RunningServer, language: str, tmp_path: Path) -> None:
    """SDK-19, case 45."""
    with started(language, "until_loss", running.url, running.service_key, tmp_path) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "holding\n"
        headers = {"Authorization": f"Bearer {running.service_key}"}
        httpx.delete(f"{running.url}/locks/{language}-until_loss", headers=headers).raise_for_status()
        output, errors = program.communicate(timeout=SECONDS_MAX)
    assert (program.returncode, output) == (0, "lost\n")
    # Ruby's logger writes warnings to standard error unless the program sets another one (SDK-25).
    assert errors == "" if language != "ruby" else re.search(r"\A.*WARN.*lost the lock.*\n\Z", errors)
