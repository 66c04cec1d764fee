"""A rule nobody tests is a wish: each id of spec/ is named by a scenario or a test, and so is each fault."""

import re
from pathlib import Path

import pytest

FAMILIES = {
    "lease.md": ["LEASE"],
    "http.md": ["HTTP", "QUOTA", "ADMIN", "OPS"],
    "sdk.md": ["SDK"],
    "cli.md": ["CLI"],
}


@pytest.fixture(scope="session")
def tested(root: Path) -> str:
    """The text of every scenario and every test but those of this folder, which only count."""
    texts = [path.read_text() for path in (root / "conformance/scenarios").rglob("*.y*ml")]
    for top in ("server/tests", "sdks/python/tests", "conformance/tests", "tests"):
        texts += [
            path.read_text() for path in (root / top).rglob("*.py") if not path.is_relative_to(root / "tests/spec")
        ]
    return "\n".join(texts)


@pytest.mark.parametrize(("document", "family"), [(name, one) for name, all_ in FAMILIES.items() for one in all_])
def test_every_rule_is_named_by_a_scenario_or_a_test(root: Path, tested: str, document: str, family: str) -> None:
    defined = _defined(root / "spec" / document, family)
    named = set(re.findall(rf"\b{family}-\d+\b", tested))
    assert [rule for rule in defined if rule not in named] == []


@pytest.mark.parametrize(("document", "family"), [(name, one) for name, all_ in FAMILIES.items() for one in all_])
def test_rules_are_numbered_from_one_and_in_order(root: Path, document: str, family: str) -> None:
    defined = _defined(root / "spec" / document, family)
    assert defined == [f"{family}-{number}" for number in range(1, len(defined) + 1)]
    assert defined


def test_no_test_names_a_rule_that_does_not_exist(root: Path, tested: str) -> None:
    for document, families in FAMILIES.items():
        for family in families:
            named = set(re.findall(rf"\b{family}-\d+\b", tested))
            assert sorted(named - set(_defined(root / "spec" / document, family))) == []


def test_every_fault_is_named_by_a_test(root: Path, tested: str) -> None:
    listed = re.findall(r"^\| (\d+) \|", (root / "spec/faults.md").read_text(), re.MULTILINE)
    named: set[str] = set()
    for numbers in re.findall(r"\bcases? (\d+(?:(?:, | and |, and )\d+)*)", tested, re.IGNORECASE):
        named |= set(re.findall(r"\d+", numbers))
    assert len(listed) == len(set(listed)) > 0
    assert [number for number in listed if number not in named] == []


def _defined(document: Path, family: str) -> list[str]:
    """The rule ids that a document defines, in its order."""
    return re.findall(rf"^\*\*({family}-\d+)\*\*", document.read_text(), re.MULTILINE)
