"""Links between documents work, and ADRs have their form."""

import re
from pathlib import Path

LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def _documents(root: Path) -> list[Path]:
    top = [*root.glob("*.md"), root / "llms.txt", *root.glob("sdks/*/README.md"), root / "server/README.md"]
    return [*top, *(path for folder in ("spec", "docs", "skills") for path in (root / folder).rglob("*.md"))]


def test_every_link_has_an_existing_target(root: Path) -> None:
    broken = [
        f"{document.relative_to(root)} → {target}"
        for document in _documents(root)
        for target in LINK.findall(document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []


def test_adrs_are_short_and_complete(root: Path) -> None:
    """An ADR has at most 30 lines: problem, decision, alternatives, consequence."""
    decisions = sorted((root / "docs/adr").glob("[0-9]*.md"))
    assert decisions
    for number, decision in enumerate(decisions, start=1):
        text = decision.read_text()
        assert decision.name.startswith(f"{number:04}-")
        assert len(text.splitlines()) <= 30, decision.name
        for part in ("Problem", "Decision", "Alternatives", "Consequence"):
            assert f"**{part}.**" in text, f"{decision.name} lacks {part}"
