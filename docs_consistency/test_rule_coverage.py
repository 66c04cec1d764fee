"""A rule nobody tests is a wish: each id of spec/ is named by a scenario or a test, and so is each fault.

What is asked of a client is named in the tests of each language's client.
"""

import re
from pathlib import Path

import pytest

FAMILIES = {
    "lease.md": ["LEASE"],
    "http.md": ["HTTP", "QUOTA", "ADMIN", "OPS"],
    "waiting.md": ["WAIT"],
    "watching.md": ["LIST", "EVENT"],
    "sdk.md": ["SDK"],
    "cli.md": ["CLI"],
    "keeping.md": ["KEEP"],
}


CLIENT_TESTS = {
    "Python": ("sdks/python/tests", "*.py"),
    "JavaScript": ("sdks/javascript/tests", "*.ts"),
    "Ruby": ("sdks/ruby/test", "*.rb"),
}


@pytest.fixture(scope="session")
def client_tests(root: Path) -> dict[str, str]:
    """The text of the tests of each language's client."""
    return {language: _texts(root / top, pattern) for language, (top, pattern) in CLIENT_TESTS.items()}


@pytest.fixture(scope="session")
def tested(root: Path, client_tests: dict[str, str]) -> str:
    """The text of every scenario and every test but those of this folder, which only count."""
    own = [_texts(root / top, "*.py") for top in ("server/tests", "conformance")]
    others = [_texts(root / "e2e", "*.py")]
    return "\n".join([*own, *others, _texts(root / "conformance/scenarios", "*.yaml"), *client_tests.values()])


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


@pytest.mark.parametrize("language", CLIENT_TESTS)
def test_every_rule_of_the_clients_is_named_in_each_language(
    root: Path, client_tests: dict[str, str], language: str
) -> None:
    named = set(re.findall(r"\bSDK-\d+\b", client_tests[language]))
    assert [rule for rule in _defined(root / "spec/sdk.md", "SDK") if rule not in named] == []


def test_every_fault_is_named_by_a_test(root: Path, tested: str) -> None:
    listed = [number for number, _ in _faults(root)]
    assert len(listed) == len(set(listed)) > 0
    assert [number for number in listed if number not in _cases(tested)] == []


@pytest.mark.parametrize("language", CLIENT_TESTS)
def test_every_fault_of_a_client_is_named_in_each_language(
    root: Path, client_tests: dict[str, str], language: str
) -> None:
    concern = [number for number, part in _faults(root) if language in _languages(part)]
    assert len(concern) > 15
    assert [number for number in concern if number not in _cases(client_tests[language])] == []


def _faults(root: Path) -> list[tuple[str, str]]:
    """Number and part of each row of spec/faults.md."""
    return re.findall(r"^\| (\d+) \| ([^|]+) \|", (root / "spec/faults.md").read_text(), re.MULTILINE)


def _languages(part: str) -> list[str]:
    """The languages whose clients a fault of `part` concerns: all, or those in brackets."""
    found = re.search(r"\bclient\b(?: \(([\w, ]+)\))?", part)
    if found is None:
        return []
    languages = list(CLIENT_TESTS) if found[1] is None else found[1].split(", ")
    assert set(languages) <= set(CLIENT_TESTS)
    return languages


def _cases(text: str) -> set[str]:
    """The faults that a text names."""
    lists = re.findall(r"\bcases? (\d+(?:(?:, | and |, and )\d+)*)", text, re.IGNORECASE)
    return {number for numbers in lists for number in re.findall(r"\d+", numbers)}


def _texts(folder: Path, pattern: str) -> str:
    texts = [path.read_text() for path in sorted(folder.rglob(pattern))]
    assert texts
    return "\n".join(texts)


def _defined(document: Path, family: str) -> list[str]:
    """The rule ids that a document defines, in its order."""
    return re.findall(rf"^\*\*({family}-\d+)\*\*", document.read_text(), re.MULTILINE)
