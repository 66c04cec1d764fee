"""openapi.yaml is valid, and accepts exactly the values that the server's parsers accept."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks_server.http.audit_routes import cursor_id
from volcano_locks_server.http.history_routes import position_of
from volcano_locks_server.http.lock_list_routes import after_of
from volcano_locks_server.rules import values
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.stores.cursor import decode_cursor

METHODS = {"get", "post", "put", "patch", "delete"}
EVERY_OPERATION = {"405", "413", "431", "500", "503"}
NEEDS_CREDENTIAL = {"400", "401", "403", "404"}


def test_the_document_is_valid(openapi: dict[str, Any]) -> None:
    schemathesis.openapi.from_dict(openapi).validate()


def test_the_server_serves_this_document(root: Path, openapi: dict[str, Any]) -> None:
    """OPS-4: `python spec/publish.py` writes the served copy."""
    packaged = root / "server/src/volcano_locks_server/http/openapi.json"
    assert json.loads(packaged.read_text()) == openapi


def test_each_operation_lists_every_possible_status(openapi: dict[str, Any]) -> None:
    for path, methods in openapi["paths"].items():
        for method in METHODS & set(methods):
            operation = methods[method]
            expected = EVERY_OPERATION | (NEEDS_CREDENTIAL if operation["security"] else set())
            expected |= {"429"} if path.startswith("/locks") else set()
            assert expected <= set(operation["responses"]), f"{method} {path}"


def test_bodies_with_unknown_fields_are_refused(schemas: dict[str, Any]) -> None:
    """HTTP-12: a misspelt field is an error."""
    for name in (
        "LeaseRequest",
        "AcquireRequest",
        "NewProject",
        "ProjectChange",
        "NewServiceKey",
        "Regeneration",
        "NewAdminToken",
        "SignIn",
    ):
        assert schemas[name]["additionalProperties"] is False, name


def test_the_limits_are_the_servers(openapi: dict[str, Any], schemas: dict[str, Any]) -> None:
    page = openapi["components"]["parameters"]["Limit"]["schema"]
    keep_old = schemas["Regeneration"]["properties"]["keep_old_seconds"]
    per_minute = schemas["RequestsPerMinute"]
    permissions = schemas["NewServiceKey"]["properties"]["permissions"]["items"]["$ref"]
    assert schemas["TtlSeconds"]["minimum"] == values.TTL_SECONDS_MIN
    assert schemas["TtlSeconds"]["maximum"] == values.TTL_SECONDS_MAX
    assert (schemas["WaitSeconds"]["minimum"], schemas["WaitSeconds"]["maximum"]) == (0, values.WAIT_SECONDS_MAX)
    assert schemas["LockKey"]["maxLength"] == values.KEY_LENGTH_MAX
    assert schemas["Holder"]["maxLength"] == values.HOLDER_LENGTH_MAX
    assert schemas["Name"]["maxLength"] == values.NAME_LENGTH_MAX
    assert (per_minute["minimum"], per_minute["maximum"]) == (0, values.REQUESTS_PER_MINUTE_MAX)
    assert (keep_old["minimum"], keep_old["maximum"]) == (0, values.KEEP_OLD_SECONDS_MAX)
    assert (page["minimum"], page["maximum"], page["default"]) == (
        1,
        values.PAGE_LIMIT_MAX,
        values.PAGE_LIMIT_DEFAULT,
    )
    listed = openapi["components"]["parameters"]["ListLimit"]["schema"]
    assert (listed["minimum"], listed["maximum"], listed["default"]) == (
        1,
        values.LIST_LIMIT_MAX,
        values.LIST_LIMIT_DEFAULT,
    )
    assert schemas["KeyPrefix"]["maxLength"] == values.KEY_LENGTH_MAX
    permission = schemas[permissions.rpartition("/")[2]]
    assert permission["maxLength"] == values.PERMISSION_LENGTH_MAX
    assert set(permission["examples"]) > values.PERMISSIONS
    assert schemas["NewServiceKey"]["properties"]["permissions"]["maxItems"] == values.PERMISSIONS_MAX


PARSERS: dict[str, Callable[[str], object]] = {
    "LockKey": values.LockKey.parse,
    "Uuid": lambda text: values.parse_request_id(text.encode("utf-8", "surrogatepass")),
    "Holder": values.parse_holder,
    "Name": values.parse_name,
    "KeyPrefix": values.parse_key_prefix,
    "Permission": values.parse_permission,
    "LockCursor": after_of,
    "HistoryCursor": position_of,
    "ProjectCursor": partial(decode_cursor, "projects"),
    "AuditCursor": cursor_id,
    "ServiceKeyCursor": partial(decode_cursor, "service-keys"),
}
NEAR_MISSES = [
    "",
    " ",
    "a\n",
    "a b",
    "a/b",
    ".a",
    "é",
    "٣",
    "a" * 128,
    "a" * 129,
    "a" * 255,
    "a" * 256,
    "sk-a_b",
    "*",
    "projects.1",
    "service-keys.1",
    "audit.000001784556000-0123456789abcdef",
    "audit.1",
    "projects.",
    "projects.1.2",
    "history.1.a",
    "history.1.a.b",
    "history..a",
    "locks.a",
    "locks.",
    "locks..a",
    "locksa",
    "locks.manage",
    "locks.read",
    "locks.reader",
    "locks.*",
    "functions.invoke",
    "functions.",
]
UUIDS = [
    "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10",
    "5B0C3F436F3C4B539D3B0C8F2A1F7F10",
    "{5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10}",
]


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("text", NEAR_MISSES + UUIDS)
def test_a_near_miss_is_accepted_by_both_or_neither(schemas: dict[str, Any], name: str, text: str) -> None:
    assert _accepted(name, text) == _matches(schemas[name], text)


@pytest.mark.parametrize("name", PARSERS)
@given(choices=st.data())
def test_any_text_is_accepted_by_both_or_neither(schemas: dict[str, Any], name: str, choices: st.DataObject) -> None:
    pattern = st.from_regex(_bare(schemas[name]), fullmatch=True)
    text = choices.draw(pattern | st.text(max_size=300))
    assert _accepted(name, text) == _matches(schemas[name], text)


@given(st.integers() | st.booleans() | st.floats() | st.text(max_size=9) | st.none())
def test_any_ttl_is_accepted_by_both_or_neither(schemas: dict[str, Any], value: object) -> None:
    """HTTP-11, except for `30.0`: JSON Schema cannot express a number's spelling."""
    if isinstance(value, float) and value.is_integer():
        return
    try:
        jsonschema.validate(value, schemas["TtlSeconds"])
        described = True
    except jsonschema.ValidationError:
        described = False
    try:
        values.parse_ttl_seconds(value)
        accepted = True
    except LockError:
        accepted = False
    assert accepted == described


def test_every_example_is_valid(openapi: dict[str, Any]) -> None:
    checked = 0
    for media in _media(openapi):
        for name, example in media.get("examples", {}).items():
            schema = {**media["schema"], "components": openapi["components"]}
            jsonschema.Draft202012Validator(schema).validate(example["value"])
            assert name
            checked += 1
    assert checked >= 7


def _media(node: Any) -> list[dict[str, Any]]:
    """Every media type object in the document."""
    if isinstance(node, list):
        return [found for one in node for found in _media(one)]
    if not isinstance(node, dict):
        return []
    here = [node["application/json"]] if "application/json" in node else []
    return here + [found for one in node.values() for found in _media(one)]


def _bare(schema: dict[str, Any]) -> re.Pattern[str]:
    """The schema's pattern without `^` and `$`, because `$` means something else in Python than in JSON Schema."""
    return re.compile(schema["pattern"].removeprefix("^").removesuffix("$"))


def _matches(schema: dict[str, Any], text: str) -> bool:
    long_enough = schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text))
    return long_enough and _bare(schema).fullmatch(text) is not None


def _accepted(name: str, text: str) -> bool:
    try:
        PARSERS[name](text)
    except LockError:
        return False
    return True
