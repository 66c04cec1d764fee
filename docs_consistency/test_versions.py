"""A release has one version: every file that states it agrees with release/project.toml."""

import re
import tomllib
from pathlib import Path

PLACES = {
    "server/pyproject.toml": r'^version = "(.+)"$',
    "sdks/python/pyproject.toml": r'^version = "(.+)"$',
    "sdks/python/src/volcano_locks/__init__.py": r'^__version__ = "(.+)"$',
    "sdks/javascript/package.json": r'^  "version": "(.+)",$',
    "sdks/javascript/src/version.ts": r'^export const VERSION = "(.+)";$',
    "sdks/ruby/lib/volcano_locks/version.rb": r'^  VERSION = "(.+)"$',
    "spec/openapi.yaml": r"^  version: (.+)$",
}


def test_every_version_is_that_of_the_project_file(root: Path) -> None:
    version = tomllib.loads((root / "release/project.toml").read_text())["version"]
    stated = {place: re.findall(form, (root / place).read_text(), re.MULTILINE) for place, form in PLACES.items()}
    assert {place for place, found in stated.items() if found[:1] != [version]} == set()
