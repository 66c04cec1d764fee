"""Builds sdists, wheels, npm tarball and gem. The same commit gives the same bytes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release.staging import ROOT, add_gem_metadata, add_npm_metadata, add_python_metadata, stage

PYTHON_FOLDERS = ("sdks/python", "server")
BUILD_SECONDS_MAX = 300


def build(out: Path, *, kinds: Sequence[str] = ("python", "npm", "gem")) -> list[Path]:
    """Build the packages of these kinds into the folder `out`. Returns their files."""
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            BUILDERS[kind](Path(folder), out.resolve())
    return sorted(set(out.iterdir()) - before)


def run(command: Sequence[str | Path], folder: Path) -> None:
    """Run a tool in `folder`; if it fails, show what it printed and exit."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "SOURCE_DATE_EPOCH": source_date()},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def source_date() -> str:
    """The time stamp of files in the packages: SOURCE_DATE_EPOCH, or the time of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    return subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()


def _python(folder: Path, out: Path) -> None:
    for name in PYTHON_FOLDERS:
        copy = stage(name, folder)
        add_python_metadata(copy)
        run([sys.executable, "-m", "hatchling", "build", "-d", out, "-t", "sdist", "-t", "wheel"], copy)


def _npm(folder: Path, out: Path) -> None:
    copy = stage("sdks/javascript", folder)
    (copy / "node_modules").symlink_to(ROOT / "sdks/javascript/node_modules")
    run(["node", "node_modules/tsdown/dist/run.mjs"], copy)
    add_npm_metadata(copy)
    run(["npm", "pack", "--ignore-scripts", "--silent", "--pack-destination", out], copy)


def _gem(folder: Path, out: Path) -> None:
    copy = stage("sdks/ruby", folder)
    add_gem_metadata(copy)
    version = (ROOT / "sdks/ruby/lib/volcano_locks/version.rb").read_text().split('"')[1]
    run(["gem", "build", "--strict", "volcano_locks.gemspec", "--output", out / f"volcano_locks-{version}.gem"], copy)


BUILDERS = {"python": _python, "npm": _npm, "gem": _gem}
