"""Registers the summary of recovery times."""

import pytest

from .recovery_times import RecoveryTimes


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RecoveryTimes(), "recovery-times")
