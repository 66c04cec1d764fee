"""Explains why a request got no response, and what to try.

A TLS failure comes in the words of OpenSSL. The user can change three things: the scheme, the name and the trusted
certificates. The message says which of them is wrong.
"""

import os
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from volcano_locks.errors import TransportError
from volcano_locks.http.address import proxy_for

from .connection import API_URL_VARIABLE

if TYPE_CHECKING:
    import ssl

E = TypeVar("E", bound=BaseException)

# OpenSSL's X509_V_ERR_…, for which the `ssl` module has no names.
_CERTIFICATE_NOT_YET_VALID: Final = 9
_CERTIFICATE_EXPIRED: Final = 10
_HOST_NAME_MISMATCH: Final = 62
_IP_ADDRESS_MISMATCH: Final = 64
_NO_TLS_THERE: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def no_response_message(error: TransportError, api_url: str) -> str:
    """The message for `error`, with which a request to `api_url` failed."""
    import ssl  # noqa: PLC0415 - needed only for failed requests

    tls_error = _cause(error, ssl.SSLError)
    if tls_error is not None:
        reason, advice = _tls_explanation(tls_error)
        return f"no response from {api_url}: TLS failed: {reason}\n{advice}"
    os_error = _cause(error, OSError)
    proxy = proxy_for(urlsplit(api_url))
    if not error.request_sent and os_error is not None and os_error.errno:
        reason = os.strerror(os_error.errno) if os_error.errno > 0 else str(os_error.strerror)
        text = f"cannot connect to {api_url if proxy is None else f'the proxy {proxy.name}'}: {reason}"
    else:
        text = f"no response from {api_url}: {error}"
    if proxy is not None:
        return f"{text}\nThe requests to {api_url} use that proxy. To connect without it, add the host to NO_PROXY."
    if api_url.startswith("http://") and error.request_sent and error.__cause__ is not None:
        return f"{text}\nA server is listening there. If it uses TLS, its address begins with https://."
    return (
        f"{text}\n"
        f"Is the server running? Set its address in {API_URL_VARIABLE} or --api-url;\n"
        "`volcano-locks dev` starts a development server."
    )


def _tls_explanation(error: "ssl.SSLError") -> tuple[str, str]:
    """What went wrong, and what to try."""
    reason = (error.reason or "the handshake broke off").lower().replace("_", " ")
    code = getattr(error, "verify_code", None)
    if code is not None:
        reason = str(getattr(error, "verify_message", reason)).rstrip(".")
    if error.reason in _NO_TLS_THERE:
        return reason, "The server there does not use TLS: its address begins with http://,\nor the port is wrong."
    if code is None:
        return reason, "Check that client and server support a common TLS version."
    if code in (_HOST_NAME_MISMATCH, _IP_ADDRESS_MISMATCH):
        return reason, f"Use a name from the certificate in {API_URL_VARIABLE} or --api-url."
    if code in (_CERTIFICATE_NOT_YET_VALID, _CERTIFICATE_EXPIRED):
        return reason, "Renew the server's certificate, or correct this machine's clock."
    return reason, (
        "This machine does not trust the issuer of the server's certificate.\n"
        "Set SSL_CERT_FILE to a PEM file with the issuer's certificate."
    )


def _cause(error: BaseException, kind: type[E]) -> E | None:
    """The exception of that kind that caused `error`, if any."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause
