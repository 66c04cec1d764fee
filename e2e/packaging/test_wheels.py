"""Wheels contain the files that the programs read at run time, and declare their requirements."""

import re
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("packages")  # one process builds them


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.mark.parametrize("distribution", ["volcano-locks", "volcano-locks-server"])
def test_everything_in_the_package_folder_is_in_the_wheel(wheels: dict[str, Path], distribution: str) -> None:
    package = distribution.replace("-", "_")
    source = ROOT / ("server" if distribution.endswith("server") else "sdks/python") / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert f"{package}/py.typed" in expected
    assert expected <= names_in(wheels[distribution])


def test_the_server_contains_its_migrations_and_its_api_description(wheels: dict[str, Path]) -> None:
    names = names_in(wheels["volcano-locks-server"])
    assert any(name.endswith(".sql") for name in names)
    assert any(name.endswith("openapi.json") for name in names)


def test_no_test_is_shipped(wheels: dict[str, Path]) -> None:
    for wheel in wheels.values():
        assert not [name for name in names_in(wheel) if "/tests/" in name or "/test_" in name]


def test_the_server_requires_the_client_of_its_release_with_its_command_line(wheels: dict[str, Path]) -> None:
    client, server = (metadata_of(wheels[name]) for name in ("volcano-locks", "volcano-locks-server"))
    assert client["Version"] == server["Version"]
    assert f"volcano-locks[cli]=={client['Version']}" in server.get_all("Requires-Dist", [])


@pytest.mark.parametrize("distribution", ["volcano-locks", "volcano-locks-server"])
def test_wheels_declare_licence_and_python_version(wheels: dict[str, Path], distribution: str) -> None:
    metadata = metadata_of(wheels[distribution])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


def test_every_package_contains_the_licence(wheels: dict[str, Path], source_archives: dict[str, Path]) -> None:
    """The npm package and the gem are checked by the tests of their clients."""
    licence = (ROOT / "LICENSE").read_bytes()
    for folder in ("server", "sdks/python", "sdks/javascript", "sdks/ruby"):
        assert (ROOT / folder / "LICENSE").read_bytes() == licence
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/licenses/LICENSE"))
            assert archive.read(name) == licence
        assert metadata_of(wheel)["License-Expression"] == "Apache-2.0"
    assert len(source_archives) == 2
    for source in source_archives.values():
        with tarfile.open(source) as archive:
            (name,) = (one for one in archive.getnames() if one.endswith("/LICENSE"))
            content = archive.extractfile(name)
            assert content is not None
            assert content.read() == licence


@pytest.mark.parametrize("distribution", ["volcano-locks", "volcano-locks-server"])
def test_requirements_have_upper_bounds(wheels: dict[str, Path], distribution: str) -> None:
    """A next major release may break us. The exceptions are explained in the server's pyproject.toml."""
    required = metadata_of(wheels[distribution]).get_all("Requires-Dist") or []
    unbounded = {re.split(r"[^a-z0-9-]", one)[0] for one in required if "<" not in one and "==" not in one}
    assert unbounded <= {"cryptography", "structlog"}
    assert required
