"""The packages of a release, built from this tree, and installed in clean environments.

The packages are built without isolation: the build backend is one of the pinned tools. The virtual environments get the
pinned releases of constraints.txt through pip's ordinary configuration.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import pytest
from release.packages import build

ROOT = Path(__file__).parents[2]


def pip_install(python: Path, *what: str) -> None:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-qq",
        "--disable-pip-version-check",
    ]
    subprocess.run([*command, "-c", ROOT / "constraints.txt", *what], check=True, timeout=300)


def clean_venv(directory: Path, *what: str) -> Path:
    """Create an environment with `what` installed. Returns its folder of programs."""
    venv.create(directory, with_pip=False, symlinks=True)
    pip_install(directory / "bin" / "python", *what)
    return directory / "bin"


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of a release: VOLCANO_LOCKS_DIST, or built now."""
    if given := os.environ.get("VOLCANO_LOCKS_DIST"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("packages")
    build(folder)
    return folder


def by_distribution(files: Iterable[Path]) -> dict[str, Path]:
    return {archive.name.split("-")[0].replace("_", "-"): archive for archive in files}


@pytest.fixture(scope="session")
def wheels(packages: Path) -> dict[str, Path]:
    """The two wheels by distribution name."""
    return by_distribution(packages.glob("*.whl"))


@pytest.fixture(scope="session")
def source_archives(packages: Path) -> dict[str, Path]:
    """The two source archives by distribution name."""
    return by_distribution(packages.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def client_only(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the client's wheel without extras."""
    return clean_venv(tmp_path_factory.mktemp("client-only"), str(wheels["volcano-locks"]))


@pytest.fixture(scope="session")
def both(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with both wheels, as `pip install './sdks/python[cli]' ./server` makes it."""
    return clean_venv(
        tmp_path_factory.mktemp("both"), f"{wheels['volcano-locks']}[cli]", str(wheels["volcano-locks-server"])
    )


@pytest.fixture
def bare_environment() -> dict[str, str]:
    """Our environment without variables that configure this product or Python."""
    configuring = ("VOLCANO", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not any(word in name for word in configuring)}
