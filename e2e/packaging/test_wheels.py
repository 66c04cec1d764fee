"""Wheels contain the files that the programs read at run time, and declare their requirements."""

import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
        assert not [name for name in names_in(wheel) if "/tests/" in name or "test_" in name]


def test_the_server_requires_the_client_of_its_release_with_its_command_line(wheels: dict[str, Path]) -> None:
    client, server = (metadata_of(wheels[name]) for name in ("volcano-locks", "volcano-locks-server"))
    assert client["Version"] == server["Version"]
    assert f"volcano-locks[cli]=={client['Version']}" in server.get_all("Requires-Dist", [])


@pytest.mark.parametrize("distribution", ["volcano-locks", "volcano-locks-server"])
def test_wheels_declare_licence_and_python_version(wheels: dict[str, Path], distribution: str) -> None:
    metadata = metadata_of(wheels[distribution])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
