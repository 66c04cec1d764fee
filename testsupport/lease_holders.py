"""Clients that hold leases without renewing them, and one that tries to take the leases over."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

import httpx2

TTL_SECONDS = 12  # longer than a restart takes
KEYS = ("a", "b", "c")
REQUEST_SECONDS_MAX = 15


@dataclass(frozen=True)
class HeldUntil:
    """A lease that its holder may rely on until `until` by the monotonic clock."""

    fencing_token: int
    until: float


def request(
    method: str, url: str, key: str, service_key: str, *, token: str | None = None, body: Mapping[str, object] | None
) -> httpx2.Response:
    """One request about the lease of `key`, with a new owner token unless one is given."""
    headers = {"Authorization": f"Bearer {service_key}", "X-Volcano-Lock-Token": token or str(uuid4())}
    with httpx2.Client(base_url=url, headers=headers, timeout=REQUEST_SECONDS_MAX) as client:
        return client.request(method, f"/locks/{key}/lease", json=body)


def hold_all(url: str, service_key: str) -> dict[str, HeldUntil]:
    """A lease of each of KEYS, held by three clients."""
    held = {}
    for key in KEYS:
        sent_at = time.monotonic()
        response = request("POST", url, key, service_key, body={"ttl_seconds": TTL_SECONDS})
        assert response.status_code == 201, response.text
        held[key] = HeldUntil(response.json()["fencing_token"], sent_at + TTL_SECONDS)
    return held


def take_all_over(url: str, service_key: str, held: Mapping[str, HeldUntil], *, within_seconds: float) -> None:
    """Take each lease over. Fails if a takeover is early, a token does not rise, or one takes too long."""
    remaining, ends_at = set(held), time.monotonic() + within_seconds
    while remaining:
        assert time.monotonic() < ends_at, f"not taken over within {within_seconds} s: {remaining}"
        for key in sorted(remaining):
            response = request("POST", url, key, service_key, body={"ttl_seconds": TTL_SECONDS})
            answered_at = time.monotonic()
            if response.status_code == 201:
                early_seconds = held[key].until - answered_at
                assert early_seconds <= 0, f"{key} was taken over {early_seconds:.1f} s before its lease was over"
                assert response.json()["fencing_token"] > held[key].fencing_token
                remaining.discard(key)
            else:
                assert response.status_code in (409, 503), response.text
        time.sleep(0.1)
