"""The command blocks of a guide, and a shell that runs them as a reader would."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide"
BIN = Path(sys.executable).parent


class Block(NamedTuple):
    """One block of commands, and the text of the comment before it, which readers do not see."""

    mark: str
    commands: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = []
    for match in re.finditer(r"^( *)```sh\n(.*?)^ *```$", text := page.read_text(), re.DOTALL | re.MULTILINE):
        indent, commands = match.groups()
        marked = re.search(r"<!-- ([^>]+) -->\n$", text[: match.start()])
        lines = [line.removeprefix(indent) for line in commands.splitlines(keepends=True)]
        found.append(Block(marked[1] if marked else "", "".join(lines)))
    return found


def run(commands: str, environment: Mapping[str, str], directory: Path, *, exit_code: int = 0) -> str:
    """Run commands in bash, with the programs of this environment first. Returns stdout and stderr together."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={**_bare(), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == exit_code, f"{commands}\n{done.stdout}"
    return done.stdout


def _bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
