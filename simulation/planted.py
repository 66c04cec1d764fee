"""Plants faults: applies each patch of `mutants/` to a copy of the product, and counts operations until it is found.

A patch begins with one sentence that says what is broken. The copy is imported by a process of its own, so that the
faults do not meet.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from .plan import plan_of
from .run import run

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = Path(__file__).parent / "mutants"
COPIED: Final = ("server/src", "sdks/python/src", "simulation", "conformance")
OPERATIONS_MAX: Final = 200_000
OPERATIONS_OF_A_SEED: Final = 400


class Found(NamedTuple):
    """`kind` of the violation, or None if nothing was found, after that many operations."""

    kind: str | None
    operations: int


def patches() -> list[Path]:
    return sorted(FOLDER.glob("*.patch"))


def meaning(patch: Path) -> str:
    """What the patch breaks."""
    return patch.read_text("utf-8").partition("\n")[0]


def applies(patch: Path) -> bool:
    """Whether the patch fits the product as it is."""
    check = subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, check=False)
    return check.returncode == 0


def search(patch: Path, operations_max: int = OPERATIONS_MAX) -> Found:
    """Look for the fault of a patch in a copy of the product."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for part in COPIED:
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        subprocess.run(["git", "apply", str(patch)], cwd=copy, capture_output=True, check=True)
        paths = [str(copy / "server/src"), str(copy / "sdks/python/src"), folder]
        process = subprocess.run(
            [sys.executable, "-m", "simulation", "search", "--operations", str(operations_max)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=True,
        )
    kind, operations = process.stdout.split()
    return Found(None if kind == "-" else kind, int(operations))


def search_here(operations_max: int) -> Found:
    """Run seeds on the product that this process imported until one fails."""
    operations, seed = 0, 1
    while operations < operations_max:
        outcome = run(plan_of(seed, min(OPERATIONS_OF_A_SEED, operations_max - operations)))
        operations += outcome.operations
        if outcome.violation is not None:
            return Found(outcome.violation.kind, operations)
        seed += 1
    return Found(None, operations)
