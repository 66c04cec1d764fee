"""The runbooks: complete, and their commands run against a real server on SQLite."""

import re
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import pytest
from testsupport.certificates import new_certificate
from testsupport.server_process import ADMIN_TOKEN, ServerProcess

from volcano_locks.cli.app import app

from .documented_commands import GUIDE, ROOT, Block, blocks, run

PAGES = sorted((GUIDE / "runbooks").glob("*.md"))
RUNBOOKS = [page for page in PAGES if page.name != "README.md"]
SETUP = blocks(GUIDE / "runbooks/README.md")
NOT_RUN = "not run: "
STOPPED = "server stopped"
EXPECTED = {
    "lock-stuck": ["holder", "worker-1", '"held"', "expires_at"],
    "losses-rise": ["no loss since the start", '{"status":"ok"}', "request_seconds_sum", "ok     server"],
    "quota-refusals": ["reports", "6000", "volcano_locks_budget_limit"],
    "slow-commits": ["commit_seconds_sum", "batch_size_count"],
    "clock-skew": ['{"status":"ok"}', "ok"],
    "database-failed-over": ['{"status":"ok"}', "daily-rollup"],
    "certificate-expires": ["  -"],
    "disk-full": ["volcano_locks_wal_bytes", "before-repair.backup"],
    "node-out": ['{"status":"ok"}', "volcano_locks_connections"],
}
"""By page: parts of the output of its blocks."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    one = ServerProcess(f"sqlite:///{tmp_path}/locks.db")
    one.start()
    yield one
    one.close()


@pytest.fixture
def environment(server: ServerProcess, tmp_path: Path) -> dict[str, str]:
    """What the README of the runbooks exports, with a held lock and the files that the pages name."""
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with httpx.Client(base_url=server.url, headers=admin) as client:
        project = client.post("/projects", json={"name": "reports"}).json()["id"]
        key = client.post(f"/projects/{project}/service-keys", json={"name": "nightly"}).json()["key_value"]
    headers = {
        "Authorization": f"Bearer {key}",
        "X-Volcano-Lock-Token": str(uuid.uuid4()),
        "X-Volcano-Lock-Holder": "worker-1",
    }
    acquired = httpx.post(f"{server.url}/locks/daily-rollup/lease", headers=headers, json={"ttl_seconds": 600})
    assert acquired.status_code == 201
    files = new_certificate(tmp_path)
    (tmp_path / "chain.pem").write_bytes(files.certificate.read_bytes())
    return {
        "VOLCANO_API_URL": server.url,
        "NODE_URL": server.url,
        "VOLCANO_SERVICE_KEY": key,
        "VOLCANO_LOCKS_ADMIN_TOKEN": ADMIN_TOKEN,
        "VOLCANO_LOCKS_STORE": f"sqlite:///{tmp_path}/locks.db",
        "OTHER_DISK": str(tmp_path),
    }


@pytest.mark.real_time
@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_the_commands_run(page: Path, environment: dict[str, str], server: ServerProcess, tmp_path: Path) -> None:
    output = ""
    for block in blocks(page):
        if block.mark.startswith(NOT_RUN):
            continue
        if block.mark == STOPPED:
            assert server.terminate() == 0
        output += run(block.commands, environment, tmp_path)
    if page.stem == "certificate-expires":
        certificate, key = output.splitlines()
        assert certificate == key
    for part in EXPECTED[page.stem]:
        assert part in output, output


def test_the_lock_is_free_after_the_runbook_about_a_stuck_one(environment: dict[str, str], tmp_path: Path) -> None:
    forced = [block for block in blocks(GUIDE / "runbooks/lock-stuck.md") if "force-release" in block.commands]
    forced = [block for block in forced if not block.mark.startswith(NOT_RUN)]
    run("".join(block.commands for block in forced), environment, tmp_path)
    assert "free" in run("volcano-locks get daily-rollup", environment, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_option_exists(page: Path) -> None:
    """Also in the blocks that this suite cannot run, and in the text."""
    text = page.read_text()
    lines = [line for block in blocks(page) for line in block.commands.splitlines()]
    lines += re.findall(r"`(volcano-locks [^`]+)`", text)
    context = click.Context(app)
    for line in lines:
        for command in re.findall(r"(?:^|[ `(])volcano-locks ([a-z][^|>]*)", line):
            words = shlex.split(command)
            verb = app.get_command(context, words[0])
            if isinstance(verb, click.Group):
                verb = verb.get_command(context, words[1])
            assert verb is not None, line
            own = words[: words.index("--")] if "--" in words else words
            options = {name for parameter in verb.params for name in (*parameter.opts, *parameter.secondary_opts)}
            assert {word for word in own if word.startswith("--")} <= options, line


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_every_runbook_has_its_parts_and_is_listed(page: Path) -> None:
    parts = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    assert parts == ["How it shows", "What it means", "What to do", "What not to do"]
    assert f"({page.name})" in (GUIDE / "runbooks/README.md").read_text()


def test_names_in_the_runbooks_exist() -> None:
    """Metrics, alerts, and events and causes of the log."""
    source = "\n".join(path.read_text() for path in (ROOT / "server/src").rglob("*.py"))
    rules = (ROOT / "deploy/prometheus/volcano-locks.rules.yml").read_text()
    metrics = (ROOT / "docs/reference/metrics.md").read_text()
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"\bVolcanoLocks\w+", text):
            assert name in rules, (page.name, name)
        for name in re.findall(r"`(volcano_locks_\w+)`", text):
            assert name in metrics, (page.name, name)
        for name in re.findall(r"`([a-z]+_[a-z_]+)`", text):
            known = any(quote in source for quote in (f'"{name}"', f"'{name}'"))
            assert known or name in _ELSEWHERE or name.startswith("volcano_locks_"), (page.name, name)


_ELSEWHERE = {
    "worker_connections",
    "listen_addresses",
    "wait_seconds",
    "expires_at",
    "synchronous_commit",
    "taken_over",
}


def test_the_setup_names_the_files_of_the_production_page() -> None:
    (setup,) = SETUP
    assert isinstance(setup, Block)
    production = (GUIDE / "production.md").read_text()
    for path in re.findall(r"/etc/volcano-locks/[\w.]+", setup.commands):
        assert path in production
