"""Whatever is sent, the answer is one that spec/openapi.yaml documents, and never a 5xx.

Requests are generated from the document itself, valid and broken, for every operation; each answer is held
against the document's statuses, headers and schemas.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks

from volcano_locks_server.testing import RunningServer, running_server

DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "spec" / "openapi.yaml").read_text("utf-8"))
schema = schemathesis.openapi.from_dict(DOCUMENT)
answers_that_end = schema.exclude(path_regex="/events$")

# Each request runs beside others that may have deleted what it names, so a check that follows
# one resource through several requests does not apply.
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with running_server() as one:
        headers = {"Authorization": f"Bearer {one.admin_token}"}
        changed = httpx.patch(
            f"{one.url}/projects/{one.project_id}", headers=headers, json={"requests_per_minute": 1_000_000}
        )
        assert changed.status_code == 200
        yield one


def wait_little(case: schemathesis.Case) -> None:
    """A wait that the document allows becomes a short one; what it forbids stays as it is."""
    if isinstance(case.body, dict):
        wait = case.body.get("wait_seconds")
        if type(wait) in (int, float) and 0 < wait <= 60:
            case.body = case.body | {"wait_seconds": 0.01}


def bearer(running: RunningServer, path: str) -> str:
    return running.service_key if path.startswith("/locks") else running.admin_token


@answers_that_end.parametrize()
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_documented(case: schemathesis.Case, running: RunningServer) -> None:
    """HTTP-17, HTTP-18, HTTP-19, ADMIN-3, OPS-4.

    Broken requests are refused, but for reads: those pass over query parameters they do not know (HTTP-6).
    """
    wait_little(case)
    refuses_broken = [] if case.method == "GET" else [checks.negative_data_rejection]
    case.call_and_validate(
        base_url=running.url,
        headers={"Authorization": f"Bearer {bearer(running, case.operation.path)}"},
        checks=CHECKS + refuses_broken,
    )


@schema.parametrize()
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
def test_nothing_opens_without_a_credential(case: schemathesis.Case, running: RunningServer) -> None:
    """HTTP-13, HTTP-14, OPS-5."""
    answer = case.call(base_url=running.url, headers={"Authorization": "Bearer sk-" + "0" * 43})
    case.validate_response(answer, checks=CHECKS)
    needs_credential = case.operation.path.startswith(("/locks", "/projects", "/backups"))
    assert (answer.status_code == 401) is needs_credential
