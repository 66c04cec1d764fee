"""The programs of the skill for coding agents and of the "coming from" pages run as they are printed."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from .dev_server import dev_server

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills/volcano-locks/SKILL.md"
DESCRIPTION_LENGTH_MAX = 1_024
COMMANDS = {
    "python": [sys.executable, "program.py"],
    "js": ["node", "program.mjs"],
    "ruby": ["ruby", "-I", str(ROOT / "sdks/ruby/lib"), "program.rb"],
    "sh": ["bash", "-eu", "program.sh"],
}
OURS = re.compile(r"volcano[-_]locks")
"""A block without it is the program before the move."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


PAGES = [SKILL, *sorted((ROOT / "docs/guide").glob("coming-from-*.md"))]
PROGRAMS = [
    pytest.param(language, text, id=f"{page.stem}-{number}-{language}")
    for page in PAGES
    for number, (language, text) in enumerate(blocks(page))
    if language in COMMANDS and OURS.search(text)
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    bare = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
    bare["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{bare['PATH']}"
    with dev_server(Path(sys.executable).with_name("volcano-locks"), bare, tmp_path_factory.mktemp("dev")) as ready:
        yield ready


def test_the_skill_has_the_front_matter_that_agents_read() -> None:
    _, front, body = SKILL.read_text().split("---\n", 2)
    fields = yaml.safe_load(front)
    assert set(fields) == {"name", "description", "license"}
    assert fields["name"] == SKILL.parent.name
    assert 0 < len(fields["description"]) <= DESCRIPTION_LENGTH_MAX
    assert len(body.splitlines()) < 500


def test_the_skill_has_one_pattern_per_language() -> None:
    assert {language for language, _ in blocks(SKILL)} == {*COMMANDS, "sql", "text"}


@pytest.mark.parametrize(("language", "program"), PROGRAMS)
def test_it_runs(environment: dict[str, str], tmp_path: Path, language: str, program: str) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/volcano-locks").symlink_to(ROOT / "sdks/javascript")
    (tmp_path / COMMANDS[language][-1]).write_text(program)
    done = subprocess.run(
        COMMANDS[language], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"under fencing token \d+$|^CREATE TRIGGER|^second is refused$", done.stdout, re.MULTILINE)


def test_the_sql_of_the_skill_refuses_a_late_write(environment: dict[str, str]) -> None:
    (fence,) = (text for _, text in blocks(SKILL) if "fencing sql" in text)
    (update,) = (text for language, text in blocks(SKILL) if language == "sql")
    script = subprocess.check_output(["bash", "-euc", fence], env=environment, text=True)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("CREATE TABLE report (day text PRIMARY KEY, total int NOT NULL);" + script)
        connection.execute("INSERT INTO report (day, total, fencing_token) VALUES ('monday', 1, 10)")
        changed = [
            connection.execute(update, {"total": token, "fencing_token": token, "day": "monday"}).rowcount
            for token in (10, 11, 10)
        ]
        assert changed == [1, 1, 0]


def test_llms_txt_has_the_form_that_its_readers_expect() -> None:
    """A title, a summary, and sections of links; docs_consistency checks that each link leads somewhere."""
    title, summary, *rest = [part for part in (ROOT / "llms.txt").read_text().split("\n\n") if part]
    assert title == "# volcano-locks"
    assert summary.startswith("> ")
    lists = [part for part in rest if part.startswith("- ")]
    assert len(lists) >= 5
    assert all(re.match(r"- \[.+?\]\(.+?\)", line) for part in lists for line in part.splitlines())
