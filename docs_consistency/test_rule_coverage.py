"""Every rule and every fault of spec/ has a test.

A run of the scenario suite checks that each rule passed on each target (conformance/rule_coverage.py). Some rules are
not shown by a scenario on every target. Here the tests of the server, or of each client concerned, must name them.
"""

import re
from pathlib import Path

import pytest
from conformance.rule_coverage import EXEMPT, required_pairs
from conformance.scenario.parser import load
from conformance.targets.catalog import TARGETS

FAMILIES = {
    "lease.md": ["LEASE"],
    "http.md": ["HTTP", "QUOTA", "ADMIN", "OPS"],
    "waiting.md": ["WAIT"],
    "watching.md": ["LIST", "EVENT"],
    "history.md": ["HISTORY"],
    "sdk.md": ["SDK"],
    "cli.md": ["CLI"],
    "keeping.md": ["KEEP"],
    "dashboard.md": ["UI"],
    "audit.md": ["AUDIT"],
}
CLIENT_TESTS = {
    "Python": ("sdks/python/tests", "*.py"),
    "JavaScript": ("sdks/javascript/tests", "*.ts"),
    "Ruby": ("sdks/ruby/test", "*.rb"),
}
PENDING: dict[str, set[str]] = {}
"""Rules and faults whose tests are still to be written, by language. An entry whose test exists is a failure."""
ALL_PENDING = set().union(*PENDING.values())
SERVER_TESTS = [("server/tests", "*.py"), ("e2e", "*.py")]


@pytest.fixture(scope="session")
def client_tests(root: Path) -> dict[str, str]:
    """The text of each client's own tests."""
    return {language: _texts(root / folder, pattern) for language, (folder, pattern) in CLIENT_TESTS.items()}


@pytest.fixture(scope="session")
def server_tests(root: Path) -> str:
    """The text of the tests of the server and of real processes."""
    return "\n".join(_texts(root / folder, pattern) for folder, pattern in SERVER_TESTS)


@pytest.fixture(scope="session")
def tested(root: Path, client_tests: dict[str, str], server_tests: str) -> str:
    """The text of every scenario and of every test outside this folder."""
    suite = [_texts(root / "conformance", "*.py"), _texts(root / "conformance/scenarios", "*.yaml")]
    return "\n".join([server_tests, *suite, *client_tests.values()])


@pytest.mark.parametrize(("document", "family"), [(name, one) for name, all_ in FAMILIES.items() for one in all_])
def test_every_rule_is_named_by_a_scenario_or_a_test(root: Path, tested: str, document: str, family: str) -> None:
    defined = _defined(root / "spec" / document, family)
    named = set(re.findall(rf"\b{family}-\d+\b", tested))
    assert [rule for rule in defined if rule not in named | ALL_PENDING] == []


@pytest.mark.parametrize(("document", "family"), [(name, one) for name, all_ in FAMILIES.items() for one in all_])
def test_rules_are_numbered_from_one_and_in_order(root: Path, document: str, family: str) -> None:
    defined = _defined(root / "spec" / document, family)
    assert defined == [f"{family}-{number}" for number in range(1, len(defined) + 1)]
    assert defined


def test_no_test_names_an_unknown_rule(root: Path, tested: str) -> None:
    for document, families in FAMILIES.items():
        for family in families:
            named = set(re.findall(rf"\b{family}-\d+\b", tested))
            assert sorted(named - set(_defined(root / "spec" / document, family))) == []


def test_a_scenario_proves_every_required_rule_on_its_target() -> None:
    """Before the suite runs: the scenarios exist. The suite itself checks that they pass."""
    pairs = {(rule, spec.name) for one in load() for rule in one.proves for spec in TARGETS if spec.supports(one)}
    assert sorted(required_pairs() - pairs) == []


def test_exemptions_are_for_known_rules_and_targets(root: Path) -> None:
    defined = {rule for name, all_ in FAMILIES.items() for one in all_ for rule in _defined(root / "spec" / name, one)}
    assert set(EXEMPT) <= defined
    assert {target for targets in EXEMPT.values() for target in targets} <= {spec.name for spec in TARGETS}


@pytest.mark.parametrize("rule", EXEMPT)
def test_an_exempt_rule_is_named_by_the_tests_of_its_targets(
    client_tests: dict[str, str], server_tests: str, rule: str
) -> None:
    named = re.compile(rf"\b{rule}\b")
    sides = {spec.name: spec.side for spec in TARGETS}
    if any(sides[target] == "server" for target in EXEMPT[rule]):
        assert named.search(server_tests)
    languages = {target.partition("-")[0] for target in EXEMPT[rule] if sides[target] == "clients"}
    without = {name for name, text in client_tests.items() if name.lower() in languages and not named.search(text)}
    assert without == {name for name, pending in PENDING.items() if rule in pending}


def test_every_fault_is_named_by_a_test(root: Path, tested: str) -> None:
    listed = [number for number, _ in _faults(root)]
    assert len(listed) == len(set(listed)) > 0
    named = _cases(tested) | _cases_of_scenarios("server") | _cases_of_scenarios("clients")
    assert [number for number in listed if number not in named | ALL_PENDING] == []
    assert sorted(named - set(listed)) == []


@pytest.mark.parametrize("language", CLIENT_TESTS)
def test_every_fault_of_a_client_is_named_by_its_tests_or_a_scenario(
    root: Path, client_tests: dict[str, str], language: str
) -> None:
    concern = [number for number, part in _faults(root) if language in _languages(part)]
    assert len(concern) > 15
    named = _cases(client_tests[language]) | _cases_of_scenarios(f"{language.lower()}-")
    assert {number for number in concern if number not in named} == {
        one for one in PENDING.get(language, set()) if one.isdigit()
    }


def _faults(root: Path) -> list[tuple[str, str]]:
    """The number and the part of each row of spec/faults.md."""
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
    """The numbers of the faults that a text names."""
    lists = re.findall(r"\bcases? (\d+(?:(?:, | and |, and )\d+)*)", text, re.IGNORECASE)
    return {number for numbers in lists for number in re.findall(r"\d+", numbers)}


def _cases_of_scenarios(target: str) -> set[str]:
    """The numbers of the faults of all scenarios that run on a target with this prefix, or on this side."""
    specs = [spec for spec in TARGETS if spec.name.startswith(target) or spec.side == target]
    return {str(case) for one in load() for case in one.cases if any(spec.supports(one) for spec in specs)}


def _texts(folder: Path, pattern: str) -> str:
    texts = [path.read_text() for path in sorted(folder.rglob(pattern))]
    assert texts
    return "\n".join(texts)


def _defined(document: Path, family: str) -> list[str]:
    """The rule ids that a document defines, in its order."""
    return re.findall(rf"^\*\*({family}-\d+)\*\*", document.read_text(), re.MULTILINE)
