"""docs/guide/production.md: its command blocks run in order, with real PostgreSQL, two servers and nginx.

What needs a machine of its own is left out, line by line: packages, users, systemd. The servers then start from the
settings file that the page writes, and nginx from the site that it writes. Paths and ports become the test's.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from testsupport.engines import postgres, proxies
from testsupport.engines.processes import free_port, program
from testsupport.server_process import ServerProcess

from .documented_commands import BIN, GUIDE, ROOT, blocks, run
from .shipped_proxies import DEPLOY, replaced

BLOCKS = {block.mark: block.commands for block in blocks(GUIDE / "production.md")}
NEEDS_A_MACHINE = re.compile(
    r"^(apt-get|ca-certificates|systemctl (?!kill)|systemd-|ln -sf|nginx -t|sed -i .*nginx\.conf"
    r"|install .*/etc/(sysusers|systemd))"
)
ELSEWHERE = {
    "packages": "needs a machine of its own",
    "install": "packaging/test_installed_wheels.py installs the same",
    "units": "test_systemd_units.py",
    "second-node": "test_systemd_units.py, and below",
}
IN_ORDER = ["database", "settings", "schema", "ready", "certificate", "nginx", "project", "first-job", "prometheus"]
IN_ORDER += ["backup", "rotate-key", "rotate-admin-token", "kill"]


def test_every_block_is_run_here_or_elsewhere() -> None:
    assert set(BLOCKS) == set(IN_ORDER) | set(ELSEWHERE)
    assert [mark for mark in BLOCKS if mark in IN_ORDER] == IN_ORDER


class Page:
    """Runs blocks of the page with the test's paths and ports."""

    def __init__(self, database: postgres.Postgres, folder: Path) -> None:
        self.ports = free_port(), free_port()
        self.https_port = 0
        self.folder = folder
        self.database = database

    def run(self, *marks: str, before: str = "", values: dict[str, str] | None = None) -> str:
        """Run these blocks in one shell. `values` replace more text."""
        text = before + "".join(self._lines(BLOCKS[mark]) for mark in marks)
        first, second = self.ports
        changes = {
            "runuser -u postgres -- psql": f"psql -h 127.0.0.1 -p {self.database.port} -U postgres",
            "runuser -u postgres -- pg_restore": "pg_restore",
            "runuser -u postgres -- sh": "sh",
            "pg_dump --format": f"pg_dump -h 127.0.0.1 -p {self.database.port} -U postgres --format",
            "-o postgres -g postgres ": "",
            "@127.0.0.1/locks": f"@127.0.0.1:{self.database.port}/locks",
            "127.0.0.1:7420": f"127.0.0.1:{first}",
            "127.0.0.1:7421": f"127.0.0.1:{second}",
            "https://localhost": f"https://localhost:{self.https_port}",
            "/usr/src/volcano-locks": str(ROOT),
            "/etc/nginx/sites-available": str(self.folder),
            **{f"{path}/": f"{self.folder}{path}/" for path in ("/etc/prometheus", "/etc/cron.daily", "/var/backups")},
            "/etc/ssl/volcano-locks": f"{self.folder}/etc/ssl",
            "/etc/volcano-locks": f"{self.folder}/etc/volcano-locks",
            **(values or {}),
        }
        for name, value in changes.items():
            text = text.replace(name, value)
        psql = Path(program("psql", "postgresql")).parent
        return run(text, {"PATH": f"{BIN}{os.pathsep}{psql}{os.pathsep}{os.environ['PATH']}"}, DEPLOY)

    def _lines(self, commands: str) -> str:
        return "".join(f"{line}\n" for line in commands.splitlines() if not NEEDS_A_MACHINE.match(line.strip()))

    @property
    def settings(self) -> dict[str, str]:
        lines = (self.folder / "etc/volcano-locks/server.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def database() -> Iterator[postgres.Postgres]:
    with postgres.primary() as one:  # it syncs, or doctor would object
        yield one


@pytest.mark.engines
@pytest.mark.real_time
def test_the_page_leads_to_two_nodes_behind_nginx(database: postgres.Postgres, tmp_path: Path) -> None:
    for folder in ("etc/prometheus", "etc/cron.daily", "var/backups"):
        (tmp_path / folder).mkdir(parents=True)
    page = Page(database, tmp_path)
    exported = "set -a; . /etc/volcano-locks/server.env; set +a\n"
    findings = page.run("database", "settings", "schema")
    assert (tmp_path / "etc/volcano-locks/server.env").stat().st_mode & 0o077 == 0
    assert "WRONG" not in findings
    with ExitStack() as stack:
        nodes = [start_node(stack, page, port) for port in page.ports]
        assert page.run("ready").count('{"status":"ok"}') == 2
        page.run("certificate", "nginx")
        page.https_port = int(stack.enter_context(proxies.nginx_site(lambda *its: site(page, *its))).partition(":")[2])
        page.run("project", before=exported)
        output = page.run("first-job", before=exported)
        assert "it works" in output
        assert "FAILED" not in output
        assert "SUCCESS" in page.run("prometheus")
        assert int(page.run("backup").split()[-1]) > 3
        assert "the new key works" in page.run("rotate-key", before=exported)
        trust = f"export SSL_CERT_FILE={tmp_path}/etc/ssl/chain.pem\n"
        killed = {"systemctl kill --signal=KILL volcano-locks": f"kill -9 {nodes[0].pid}"}
        survived = page.run("kill", before=exported + trust, values=killed)
        assert "the job kept its lock" in survived
        assert nodes[0].wait() == -9
        page.run("rotate-admin-token", values={"volcano-locks project list": "true"})
        nodes[1].terminate()
        start_node(stack, page, page.ports[1])
        listed = f"VOLCANO_API_URL=http://127.0.0.1:{page.ports[1]} volcano-locks project list\n"
        assert "reports" in page.run(before=exported + listed)


def start_node(stack: ExitStack, page: Page, port: int) -> ServerProcess:
    """A node with the settings that the page wrote, on this port, as systemd starts it."""
    values = page.settings
    node = ServerProcess(values["VOLCANO_LOCKS_STORE"], environment=values)
    node.port = port
    stack.callback(node.close)
    node.start()
    return node


def site(page: Page, folder: Path, port: int) -> str:
    """The site that the page wrote, with copies of its certificate that nginx's user can read."""
    text = (page.folder / "volcano-locks").read_text()
    values = {"listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;"}
    for name in ("chain.pem", "key.pem"):
        shutil.copy(page.folder / "etc/ssl" / name, folder / name)
        shutil.chown(folder / name, folder.owner())
        values[f"/etc/ssl/volcano-locks/{name}"] = str(folder / name)
    return replaced(text, values)


def test_shell_blocks_are_valid() -> None:
    for mark, commands in BLOCKS.items():
        checked = subprocess.run(["bash", "-n"], input=commands, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, (mark, checked.stderr)
