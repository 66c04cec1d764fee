"""Every response to a generated request is documented in spec/openapi.yaml, and never a 5xx.

Valid and invalid requests for every operation are generated from the document. Each response is checked against the
document's statuses, headers and schemas.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks

from volcano_locks_server.http import failed_credentials
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import RunningServer, running_server

DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "spec" / "openapi.yaml").read_text("utf-8"))
schema = schemathesis.openapi.from_dict(DOCUMENT)
SETTINGS = Settings(store="memory://", port=0, log_level="warning", dashboard=True)
without_streams = schema.exclude(path_regex="/events$")

# Concurrent requests may have deleted the resource of a request, so checks that follow one resource do not apply.
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    """Whose responses to unknown credentials do not wait (HTTP-35): there are too many."""
    with pytest.MonkeyPatch.context() as patched, running_server(SETTINGS) as one:
        patched.setattr(failed_credentials, "FREE_FAILURES", 1_000_000)
        headers = {"Authorization": f"Bearer {one.admin_token}"}
        changed = httpx.patch(
            f"{one.url}/projects/{one.project_id}", headers=headers, json={"requests_per_minute": 1_000_000}
        )
        assert changed.status_code == 200
        yield one


def shorten_wait(case: schemathesis.Case) -> None:
    """Shorten a valid wait. An invalid one stays as it is."""
    if isinstance(case.body, dict):
        wait = case.body.get("wait_seconds")
        if type(wait) in (int, float) and 0 < wait <= 60:
            case.body = case.body | {"wait_seconds": 0.01}


def bearer(running: RunningServer, path: str) -> str:
    return running.service_key if path.startswith(("/locks", "/history")) else running.admin_token


@without_streams.parametrize()
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_response_is_documented(case: schemathesis.Case, running: RunningServer) -> None:
    """HTTP-17, HTTP-18, HTTP-19, ADMIN-3, OPS-4.

    Invalid requests are refused, except reads, which ignore unknown query parameters (HTTP-6).
    """
    shorten_wait(case)
    refuses_invalid = [] if case.method == "GET" else [checks.negative_data_rejection]
    case.call_and_validate(
        base_url=running.url,
        headers={"Authorization": f"Bearer {bearer(running, case.operation.path)}"},
        checks=CHECKS + refuses_invalid,
    )


@schema.parametrize()
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
def test_every_operation_that_needs_a_credential_refuses_an_unknown_one(
    case: schemathesis.Case, running: RunningServer
) -> None:
    """HTTP-13, HTTP-14, OPS-5."""
    response = case.call(base_url=running.url, headers={"Authorization": "Bearer sk-" + "0" * 43})
    case.validate_response(response, checks=CHECKS)
    needs_credential = case.operation.path.startswith(
        ("/locks", "/history", "/projects", "/backups", "/admin-tokens", "/audit", "/nodes", "/activity", "/ui/codes")
    )
    name = case.operation.definition.raw["operationId"]
    needs_credential |= name == "readDashboardSession"
    if name != "signIn":  # its credential is in the body
        assert (response.status_code == 401) is needs_credential
