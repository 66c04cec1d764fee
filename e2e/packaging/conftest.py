"""Wheels built from this tree, installed in clean virtual environments.

The wheels are built without isolation: the build backend is one of the pinned tools. The environments get the pinned
releases of constraints.txt through pip's ordinary configuration.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the two wheels and return them by distribution name."""
    out = tmp_path_factory.mktemp("wheels")
    for source in ("sdks/python", "server"):
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            out,
            ROOT / source,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in out.glob("*.whl")}


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
