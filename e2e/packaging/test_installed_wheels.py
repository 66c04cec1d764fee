"""The programs work when installed from wheels in a clean environment: `dev`, `run`, an acquire."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .dev_server import dev_server

pytestmark = pytest.mark.xdist_group("packages")  # one process builds them

ACQUIRE = """
from volcano_locks import Client
with Client() as client:
    lease = client.locks.acquire("smoke", ttl=30)
    print(client.locks.get("smoke").fencing_token == lease.fencing_token)
    client.locks.release("smoke", lease)
    print(client.locks.get("smoke").held)
"""


def test_the_client_alone_imports(client_only: Path, bare_environment: dict[str, str]) -> None:
    code = "import volcano_locks.testing; from volcano_locks import AsyncClient, Client; print('fine')"
    done = subprocess.run(
        [client_only / "python", "-c", code], env=bare_environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_the_client_alone_needs_only_h11(client_only: Path, bare_environment: dict[str, str]) -> None:
    code = "from importlib.metadata import distributions; print(*sorted(one.name for one in distributions()))"
    done = subprocess.run(
        [client_only / "python", "-c", code], env=bare_environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["h11", "volcano-locks"]


def test_the_command_line_without_its_extra_names_what_to_install(
    client_only: Path, bare_environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [client_only / "volcano-locks", "run"], env=bare_environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 64
    assert "pip install 'volcano-locks[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def dev_environment(both: Path, bare_environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with the variables of a running `volcano-locks dev`."""
    with dev_server(both / "volcano-locks", bare_environment, tmp_path) as environment:
        yield environment


def test_dev_run_and_an_acquire(both: Path, dev_environment: dict[str, str], tmp_path: Path) -> None:
    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, env=dev_environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(both / "volcano-locks", "run", "hello", "--", "echo", "it works") == "it works\n"
    assert run(both / "python", "-c", ACQUIRE) == "True\nFalse\n"


def test_serve_is_a_command_if_the_server_is_installed(both: Path, bare_environment: dict[str, str]) -> None:
    done = subprocess.run(
        [both / "volcano-locks", "serve", "--help"], env=bare_environment, capture_output=True, text=True, check=True
    )
    assert "--store" in done.stdout
