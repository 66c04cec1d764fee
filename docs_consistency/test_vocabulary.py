"""Retired words and names do not come back: the glossary has the word to use (spec/glossary.md, CONTRIBUTING.md).

Ordinary uses stay: a text line, the rest of a list, an answer to a question, a place in a file.
"""

import re
from pathlib import Path

import pytest

EXCEPTIONS: dict[str, str] = {
    "docs_consistency/test_vocabulary.py": "the list itself",
}
"""Files and folders (with a slash) that may use retired words and names, with the reason."""

WORDS = {
    "nobody": "name the actor: no client, no waiter, no other node",
    "somebody": "name the actor: another client, an operator",
    "whoever": "name the actor, or use if and when",
    "told": "notified, reported, returned, passed",
    "tells?": "notifies, reports, returns",
    "hears?": "receives, is notified",
    "heard": "received",
    "house": "harness, package",
}
ALLOWED = re.compile(
    r"\btells? (\w+ ){0,4}(apart|from)\b"  # to tell one thing from another
    r"|\.tell\(\)"  # the position in a file
    r'|["\']hear["\']',  # the tag of a message between nodes, which nodes of an older version send too
    re.IGNORECASE,
)

CLASSES = {
    "Answer": "Response, Result",
    "Asked": "PendingCommand",
    "Caller": "Principal",
    "Courier": "Transport",
    "Crowd": "LoadClients",
    "Deed": "LockEvent",
    "Entrance": "TargetSpec",
    "Face": "Target",
    "Flow": "Operation",
    "Happening": "LockEvent",
    "Heartbeat": "RenewalPlan",
    "House": "ServerHarness",
    "Keeper": "Renewer",
    "Lines?": "WaitQueue",
    "Neighbours?": "Peer",
    "Places?": "Waiter",
    "Rests?": "Backoff",
    "Serving": "HandoffStep",
    "Stage": "Fixture",
    "Told": "by meaning: NumberedEvent, SubscribeAck",
    "Wire": "Transport, Connection, FaultProxy",
}
MODULES = {
    *("lines", "places", "looking", "sharing", "givingback", "telling", "counting", "neighbours", "watchers"),
    *("expiries", "upkeep", "refusals", "findings", "packets", "keeper", "heartbeat", "rests", "courier"),
    *("crowd", "stage", "house", "face", "faces", "words", "grammar"),
}
CODE = {".py", ".ts", ".mjs", ".rb"}
TEXT = CODE | {".md", ".yaml", ".toml", ".sql", ".html", ".js", ".css", ".rbs", ".sh", ".proto"}
NOT_OURS = {".venv", "build", "node_modules", "dist", "results", "__pycache__"}


@pytest.fixture(scope="session")
def files(root: Path) -> dict[str, Path]:
    """The files that the vocabulary applies to, by their path in the repository."""
    tops = [path for path in root.iterdir() if not path.name.startswith(".") and path.name not in NOT_OURS]
    found = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*")) if path.suffix in TEXT]
    named = {str(path.relative_to(root)): path for path in found if not NOT_OURS & set(path.parts)}
    ours = {name: path for name, path in named.items() if not _is_exception(name)}
    assert len(ours) > 50
    return ours


def _is_exception(name: str) -> bool:
    return any(name == one or (one.endswith("/") and name.startswith(one)) for one in EXCEPTIONS)


@pytest.mark.parametrize("word", WORDS)
def test_no_file_uses_a_retired_word(files: dict[str, Path], word: str) -> None:
    retired = re.compile(rf"\b{word}\b", re.IGNORECASE)
    uses = [
        f"{name}:{number}: {line.strip()}"
        for name, path in files.items()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if retired.search(ALLOWED.sub("", line.replace("_", " ")))
    ]
    assert uses == [], f"use instead: {WORDS[word]}"


@pytest.mark.parametrize("name", CLASSES)
def test_no_class_has_a_retired_name(files: dict[str, Path], name: str) -> None:
    retired = re.compile(rf"\b(?:class|interface|module|type) _?{name}\b")
    uses = [file for file, path in files.items() if path.suffix in CODE and retired.search(path.read_text("utf-8"))]
    assert uses == [], f"use instead: {CLASSES[name]}"


def test_no_module_has_a_retired_name(files: dict[str, Path]) -> None:
    assert [name for name, path in files.items() if path.suffix in CODE and path.stem.lstrip("_") in MODULES] == []


def test_exceptions_exist(root: Path) -> None:
    assert [name for name in EXCEPTIONS if not (root / name).exists()] == []
