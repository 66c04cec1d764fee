"""The documents of spec/, read once for the tests that compare them with the code and with each other."""

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's top folder."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def errors_table(root: Path) -> dict[str, dict[str, Any]]:
    """spec/errors.yaml: code → status, retryable, meaning, action."""
    table: dict[str, dict[str, Any]] = yaml.safe_load((root / "spec/errors.yaml").read_text())
    return table


@pytest.fixture(scope="session")
def openapi(root: Path) -> dict[str, Any]:
    """spec/openapi.yaml as parsed, references not followed."""
    document: dict[str, Any] = yaml.safe_load((root / "spec/openapi.yaml").read_text())
    return document


@pytest.fixture(scope="session")
def schemas(openapi: dict[str, Any]) -> dict[str, Any]:
    """The named schemas of openapi.yaml."""
    named: dict[str, Any] = openapi["components"]["schemas"]
    return named
