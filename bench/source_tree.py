"""The source trees whose servers a benchmark compares: the working tree, and another commit of this repository."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .processes import BenchError, program, run

ROOT: Final = Path(__file__).resolve().parent.parent


def python_path(tree: Path) -> str:
    """The PYTHONPATH with which this environment's programs run the code of `tree`."""
    return f"{tree / 'server/src'}:{tree / 'sdks/python/src'}"


@contextmanager
def commit_tree(commit: str, folder: Path) -> Iterator[Path]:
    """A worktree of that commit in the new folder `folder`. Raises BenchError if the commit cannot be used."""
    git = [program("git", "git"), "-C", str(ROOT)]
    run([*git, "worktree", "add", "--quiet", "--detach", str(folder), commit])
    try:
        _check_imports(folder)
        yield folder
    finally:
        run([*git, "worktree", "remove", "--force", str(folder)])


def _check_imports(tree: Path) -> None:
    """Make sure that PYTHONPATH has precedence over what is installed in this environment."""
    command = [sys.executable, "-c", "import volcano_locks_server; print(volcano_locks_server.__file__)"]
    imported = run(command, environment={"PYTHONPATH": python_path(tree)}).strip()
    if not Path(imported).is_relative_to(tree):
        raise BenchError(f"this environment imports {imported} instead of the code in {tree}")
