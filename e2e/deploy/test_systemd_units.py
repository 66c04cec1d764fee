"""The shipped systemd units: valid, hardened, and with everything that the server needs from the kernel.

systemd-analyze reads units without a running systemd.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
from testsupport.server_process import PROGRAM

from volcano_locks_server.runtime.settings import SETTINGS

UNITS = Path(__file__).parents[2] / "deploy/systemd"
SERVICE = (UNITS / "volcano-locks.service").read_text()
EXPOSURE_MAX = 2.0
INSTALLED = {"/opt/volcano-locks/bin/volcano-locks": PROGRAM, "/srv/consumer/consumer": "/bin/true"}


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SYSTEMD_COLORS": "0"}
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with the programs of this environment in place of the installed ones, which must exist."""
    for unit in UNITS.glob("*.*er*"):
        text = unit.read_text()
        for installed, here in INSTALLED.items():
            text = text.replace(installed, str(here))
        (tmp_path / unit.name).write_text(text)
    return tmp_path


def test_every_unit_is_valid(units: Path) -> None:
    found = [*units.glob("*.service"), *units.glob("*.timer")]
    assert len(found) == 6
    result = analyze("verify", "--man=no", *found)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_unknown_directive_is_found(units: Path) -> None:
    """The test before this one would see it."""
    broken = units / "volcano-locks.service"
    broken.write_text(broken.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in analyze("verify", "--man=no", broken).stderr


def test_the_server_is_exposed_little(units: Path) -> None:
    limit = f"--threshold={EXPOSURE_MAX * 10:.0f}"
    result = analyze("security", "--offline=yes", limit, units / "volcano-locks.service")
    assert result.returncode == 0, result.stdout
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", result.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= EXPOSURE_MAX


def test_the_server_can_read_the_state_of_the_clock() -> None:
    """LEASE-17: without it, takeovers are held after each reboot."""
    directives = [line for line in SERVICE.splitlines() if not line.startswith("#")]
    filters = [line.partition("=")[2] for line in directives if line.startswith("SystemCallFilter=")]
    # After all lines that remove calls; the C library's adjtimex() uses clock_adjtime.
    assert {"adjtimex", "clock_adjtime", "clock_adjtime64"} <= set(filters[-1].split())
    assert not any(line.startswith(("ProtectClock=", "ProcSubset=pid", "PrivateNetwork=")) for line in directives)


def test_systemd_is_notified_and_reloads_by_sighup() -> None:
    """OPS-16, OPS-7."""
    for directive in (
        "Type=notify",
        "NotifyAccess=main",
        "ExecReload=/bin/sh -c 'kill -HUP $MAINPID'",
        "Restart=always",
    ):
        assert re.search(rf"^{re.escape(directive)}$", SERVICE, re.MULTILINE), directive
    assert re.search(r"^WatchdogSec=\d+$", SERVICE, re.MULTILINE)


def test_the_settings_file_has_settings_of_the_server_only() -> None:
    names = re.findall(r"^(\w+)=", (UNITS / "server.env").read_text(), re.MULTILINE)
    assert names
    assert set(names) <= {setting.variable for setting in SETTINGS}
