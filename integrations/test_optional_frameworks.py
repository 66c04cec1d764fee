"""Frameworks are optional: each integration loads its own and no other, and the clients load none."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from integrations.workers import PAGES, ROOT

FRAMEWORKS = {"celery", "django", "apscheduler", "fastapi", "starlette", "gevent", "pytest"}
LOADS = {
    "volcano_locks.testing": set(),
    "volcano_locks.contrib": set(),
    "volcano_locks.contrib.celery": {"celery", "django"},  # Celery itself loads Django if it is installed
    "volcano_locks.contrib.django": {"django"},
    "volcano_locks.contrib.apscheduler": {"apscheduler"},
    "volcano_locks.contrib.fastapi": set(),
    "volcano_locks.contrib.pytest_plugin": {"pytest"},
}
PEERS = {"node-cron": {"node-cron"}, "nestjs": {"@nestjs/common"}, "index": set(), "testing": set()}


@pytest.mark.parametrize("module", LOADS)
def test_a_python_module_loads_only_its_own_framework(module: str) -> None:
    names = "from volcano_locks import *; import volcano_locks"
    program = f"{names}, {module}, sys, json; print(json.dumps(sorted({{n.split('.')[0] for n in sys.modules}})))"
    loaded = set(json.loads(subprocess.check_output([sys.executable, "-c", program], text=True)))
    assert loaded & FRAMEWORKS == LOADS[module]


@pytest.mark.parametrize("entry", PEERS)
@pytest.mark.parametrize("suffix", ["mjs", "cjs"])
def test_a_javascript_entry_loads_only_its_own_framework(entry: str, suffix: str) -> None:
    text = (ROOT / f"sdks/javascript/dist/node/{entry}.{suffix}").read_text()
    imported = set(re.findall(r"""(?:from|import|require\()\s*["']([^".'\s][^"'\s]*)["']""", text))
    packages = {name for name in imported if not name.startswith("node:")}
    assert packages <= PEERS[entry]


def test_every_integration_has_a_page_that_the_index_names() -> None:
    index = (PAGES / "README.md").read_text()
    assert {page.name for page in PAGES.glob("*.md")} - {"README.md"} == set(re.findall(r"\(([a-z-]+\.md)\)", index))
    assert all(len(Path(page).read_text().splitlines()) < 100 for page in PAGES.glob("*.md"))
