"""The packages that `make setup` installs are those of constraints.txt, each with the hashes of its files."""

import re
from importlib.metadata import requires
from pathlib import Path

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    return {normal(name): version for name, version in PIN.findall(path.read_text())}


def test_every_pin_has_hashes(root: Path) -> None:
    text = (root / "requirements-hashed.txt").read_text()
    assert pins(root / "requirements-hashed.txt") == pins(root / "constraints.txt")
    entries = PIN.split(text)[1:]
    without = [name for name, rest in zip(entries[::3], entries[2::3], strict=True) if "--hash=sha256:" not in rest]
    assert without == []
    assert "://" not in text, "no address of a registry"


def test_every_requirement_is_pinned(root: Path) -> None:
    """Of the tools, and of both distributions with their extras; the frameworks are pinned where they are tested."""
    named = [line for line in (root / "requirements-dev.txt").read_text().splitlines() if not line.startswith("#")]
    named += [*(requires("volcano-locks") or []), *(requires("volcano-locks-server") or [])]
    names = {normal(re.split(r"[^A-Za-z0-9._-]", one)[0]) for one in named}
    pinned = pins(root / "constraints.txt") | pins(root / "integrations/requirements.txt")
    assert names - set(pinned) == {"volcano-locks"}
