"""Registers the coverage record of the scenarios."""

from pathlib import Path

import pytest

from .coverage_plugin import CoveragePlugin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scenario-coverage",
        type=Path,
        metavar="FOLDER",
        help="the folder for the record of passed scenarios (default: pytest's cache)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: its controller records
        return
    folder = config.getoption("scenario_coverage") or config.cache.mkdir("scenario-coverage")
    config.pluginmanager.register(CoveragePlugin(Path(folder)), "scenario-coverage")
