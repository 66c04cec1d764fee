"""Django: two real processes of `manage.py`; exit codes, the migration guard, a killed host."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from integrations.workers import Journal, example, started

from volcano_locks import Client

SETTINGS = """
SECRET_KEY = "test"
INSTALLED_APPS = ["volcano_locks.contrib.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db", "OPTIONS": {"timeout": 30}}}
VOLCANO_LOCKS = {"TTL": 5}
USE_TZ = True
"""
MIGRATION = """
import os, time
from django.db import migrations

def slow(apps, schema_editor):
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"start migrate {os.getpid()}\\n")
    time.sleep(float(os.environ.get("MIGRATION_SECONDS", "1")))
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"end migrate {os.getpid()}\\n")

class Migration(migrations.Migration):
    atomic = False
    operations = [migrations.RunPython(slow)]
"""
COMMAND = """
import os, time
from volcano_locks import LockOwnershipLostError
from volcano_locks.contrib.django import LockedCommand

class Command(LockedCommand):
    def add_arguments(self, parser):
        parser.add_argument("--on-held", default="fail")
        parser.add_argument("--seconds", type=float, default=0)

    def execute(self, *args, **options):
        self.lock_on_held = options["on_held"]
        return super().execute(*args, **options)

    def handle(self, *args, **options):
        with open(os.environ["JOURNAL"], "a") as journal:
            journal.write(f"start work {os.getpid()}\\n")
        time.sleep(options["seconds"])
        with open(os.environ["JOURNAL"], "a") as journal:
            journal.write(f"end work {os.getpid()}\\n")
"""
HELD, LOST, CREDENTIALS, UNAVAILABLE = 75, 76, 77, 69


@pytest.fixture
def manage(tmp_path: Path) -> list[str]:
    """The command line of `manage.py` of a small project."""
    files = {
        "project.py": SETTINGS,
        "shop/__init__.py": "",
        "shop/migrations/__init__.py": "",
        "shop/migrations/0001_slow.py": MIGRATION,
        "shop/management/commands/work.py": COMMAND,
        "shop/management/commands/newsletter.py": example("django.md"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return [sys.executable, "-m", "django"]


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    return environment | {"DJANGO_SETTINGS_MODULE": "project"}


def run(command: Sequence[str], environment: dict[str, str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_example_of_the_page_runs_once_on_two_hosts(
    manage: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    with started([*manage, "newsletter"], environment, tmp_path) as hosts:
        assert [host.wait() for host in hosts] == [0, 0]
        output = "".join(host.output() for host in hosts)
    assert output.count("sent under fencing token") == 1
    assert output.count("skipped: ") == 1


def test_exit_codes(
    manage: list[str], environment: dict[str, str], tmp_path: Path, journal: Journal, client: Client
) -> None:
    work = [*manage, "work"]
    assert run(work, environment, tmp_path)[0] == 0
    with started([*work, "--seconds", "30"], environment, tmp_path, count=1) as (holder,):
        journal.wait_for("start", 2)
        code, output = run(work, environment, tmp_path)
        assert (code, "not run: " in output) == (HELD, True), output
        assert run([*work, "--on-held", "skip"], environment, tmp_path)[0] == 0
        client.locks.force_release("django-work")
        assert holder.wait() == LOST
        assert "stopped: " in holder.output()
    refused = environment | {"VOLCANO_SERVICE_KEY": "sk-" + "x" * 40}
    assert run(work, refused, tmp_path)[0] == CREDENTIALS
    unreachable = environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"}
    assert run(work, unreachable, tmp_path)[0] == UNAVAILABLE
    assert len(journal.events("end")) == 1


def test_one_host_migrates_and_the_other_waits(
    manage: list[str], environment: dict[str, str], tmp_path: Path, journal: Journal
) -> None:
    with started([*manage, "migrate"], environment, tmp_path) as hosts:
        assert [host.wait() for host in hosts] == [0, 0]
        outputs = sorted(len(re.findall("Applying shop.0001_slow", host.output())) for host in hosts)
    assert outputs == [0, 1]
    assert len(journal.events("start")) == 1


def test_another_host_migrates_when_the_first_is_killed(
    manage: list[str], environment: dict[str, str], tmp_path: Path, journal: Journal
) -> None:
    with started([*manage, "migrate"], environment | {"MIGRATION_SECONDS": "30"}, tmp_path, 1, "first") as (first,):
        journal.wait_for("start")
        with started([*manage, "migrate"], environment, tmp_path, 1, "second") as (second,):
            first.kill()
            journal.add("killed", "migrate", first.process.pid)
            assert second.wait() == 0
    assert len(journal.events("end")) == 1
    journal.check_no_overlap()


def test_reading_takes_no_lock_and_neither_do_callers_of_call_command(
    manage: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Test runners call `migrate` without a lock service."""
    alone = environment | {"VOLCANO_API_URL": "http://127.0.0.1:9"}
    assert run([*manage, "migrate", "--plan"], alone, tmp_path)[0] == 0
    program = "import django; django.setup(); from django.core.management import call_command; call_command('migrate')"
    assert run([sys.executable, "-c", program], alone, tmp_path)[0] == 0
    (tmp_path / "project.py").write_text(SETTINGS + 'VOLCANO_LOCKS = {"MIGRATE_WAIT": 1}\n')
    assert run([*manage, "migrate", "--fake"], alone, tmp_path)[0] == UNAVAILABLE


def test_unknown_settings_are_refused(manage: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(SETTINGS + 'VOLCANO_LOCKS = {"KEY": "a"}\n')
    code, output = run([*manage, "work"], environment, tmp_path)
    assert code != 0
    assert "VOLCANO_LOCKS has KEY; known names are API_URL, " in output
