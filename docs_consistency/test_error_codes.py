"""Error codes in code and documents agree with spec/errors.yaml."""

import re
from pathlib import Path
from typing import Any

from volcano_locks.errors import error_for
from volcano_locks_server.http.problems import STATUS_BY_CODE
from volcano_locks_server.rules.errors import CODES

Table = dict[str, dict[str, Any]]


def test_the_servers_codes_are_those_of_the_table(errors_table: Table) -> None:
    assert set(errors_table) == CODES


def test_the_server_sends_each_code_with_the_tables_status(errors_table: Table) -> None:
    """HTTP-18: one code, one status."""
    assert {code: row["status"] for code, row in errors_table.items()} == dict(STATUS_BY_CODE)


def test_each_row_is_complete(errors_table: Table) -> None:
    for code, row in errors_table.items():
        assert list(row) == ["status", "retryable", "meaning", "action"], code
        assert row["retryable"] in (True, False, "after"), code
        assert row["meaning"].strip(), code
        assert row["action"].strip(), code


def test_every_rule_a_row_names_exists(root: Path, errors_table: Table) -> None:
    defined = set()
    for document in (root / "spec").glob("*.md"):
        defined |= set(re.findall(r"^\*\*([A-Z]+-\d+)\*\*", document.read_text(), re.MULTILINE))
    named = set()
    for row in errors_table.values():
        named |= set(re.findall(r"\b[A-Z]{3,}-\d+\b", row["meaning"] + row["action"]))
    assert named
    assert named <= defined


def test_the_python_client_raises_each_code_as_the_class_in_sdk_md(root: Path, errors_table: Table) -> None:
    """SDK-9: the class tree in sdk.md, by status and by code."""
    tree = re.findall(r"(?:├──|└──) (\w+) +(\S.*)$", (root / "spec/sdk.md").read_text(), re.MULTILINE)
    by_word = {word: name for name, words in tree for word in re.split(r",? ", words)}
    for code, row in errors_table.items():
        status = row["status"]
        whole_class = "ServerError" if status >= 500 else "VolcanoError"
        expected = by_word.get(code) or by_word.get(str(status)) or whole_class
        assert type(error_for(status, code, "sentence")).__name__ == expected, code


def test_openapi_has_each_code_with_the_tables_status(openapi: dict[str, Any], errors_table: Table) -> None:
    documented: set[tuple[str, int]] = set()
    for status, response in _responses(openapi):
        documented |= {(code, status) for code in _codes(response)}
    assert documented == {(code, row["status"]) for code, row in errors_table.items()}


def test_openapi_lists_the_same_codes_for_programs(schemas: dict[str, Any], errors_table: Table) -> None:
    assert set(schemas["Problem"]["properties"]["code"]["enum"]) == set(errors_table)


def test_openapi_has_retry_after_for_exactly_the_codes_that_become_possible_later(
    openapi: dict[str, Any], errors_table: Table
) -> None:
    for _status, response in _responses(openapi):
        if codes := _codes(response):
            becomes_possible = any(errors_table[code]["retryable"] == "after" for code in codes)
            assert ("Retry-After" in response["headers"]) == becomes_possible, codes


def _responses(openapi: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Every (status, response) of every operation, references followed."""
    found = []
    for path in openapi["paths"].values():
        for method, operation in path.items():
            if method == "parameters":
                continue
            for status, response in operation["responses"].items():
                name = response.get("$ref", "").rpartition("/")[2]
                found.append((int(status), openapi["components"]["responses"][name] if name else response))
    return found


def _codes(response: dict[str, Any]) -> list[str]:
    """The codes a response may carry; none for a success."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    codes: list[str] = schema["allOf"][1]["properties"]["code"]["enum"] if "allOf" in schema else []
    return codes
