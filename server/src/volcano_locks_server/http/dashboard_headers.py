"""The header fields of every response under `/ui` (UI-9). Pure: no I/O."""

from typing import Final

from .problems import Headers

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_CACHE_CONTROL: Final = b"cache-control"


def with_dashboard_headers(headers: Headers) -> Headers:
    """The header fields of a response under `/ui`. `Cache-Control` is `no-store` unless the response has its own."""
    own = [] if any(name == _CACHE_CONTROL for name, _ in headers) else [(_CACHE_CONTROL, b"no-store")]
    return [*headers, *_ALWAYS, *own]
