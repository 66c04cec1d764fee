"""The programs in docs/guide/leading.md that call `lead` run unchanged, in each language."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .dev_server import dev_server

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guide/leading.md").read_text()
PROGRAMS = [
    (language, text) for language, text in re.findall(r"```(\w+)\n(.*?)```", GUIDE, re.DOTALL) if "lead(" in text
]
COMMANDS = {
    "python": [sys.executable, "program.py"],
    "js": ["node", "program.mjs"],
    "ruby": ["ruby", "-I", str(ROOT / "sdks/ruby/lib"), "program.rb"],
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    bare = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
    with dev_server(Path(sys.executable).with_name("volcano-locks"), bare, tmp_path_factory.mktemp("dev")) as ready:
        yield ready


def test_each_language_has_one() -> None:
    assert sorted({language for language, _ in PROGRAMS}) == sorted(COMMANDS)


@pytest.mark.parametrize(("language", "program"), PROGRAMS)
def test_it_leads_and_resigns(environment: dict[str, str], tmp_path: Path, language: str, program: str) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/volcano-locks").symlink_to(ROOT / "sdks/javascript")
    (tmp_path / COMMANDS[language][-1]).write_text(program)
    for _ in range(2):  # the second run finds the lock free at once
        done = subprocess.run(
            COMMANDS[language], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(r"leading under fencing token \d+\n", done.stdout)
