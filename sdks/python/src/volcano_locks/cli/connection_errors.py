"""Why no answer came, in words for the person at the shell, and what to try.

TLS fails before anything is sent, in the words of a library. Which of the three things is wrong that one can
change (the scheme, the name, what this machine trusts) is said here in ours.
"""

from typing import TYPE_CHECKING, Final

from volcano_locks.errors import TransportError

from .connection import API_URL_VARIABLE

if TYPE_CHECKING:
    import ssl

# OpenSSL's X509_V_ERR_…, for which the `ssl` module has no names.
_CERTIFICATE_NOT_YET_VALID: Final = 9
_CERTIFICATE_EXPIRED: Final = 10
_HOST_NAME_MISMATCH: Final = 62
_IP_ADDRESS_MISMATCH: Final = 64
_NO_TLS_THERE: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def no_answer(error: TransportError, api_url: str) -> str:
    """What is told of `error`, in which a request to `api_url` ended."""
    tls_error = _tls_error(error)
    if tls_error is not None:
        why, advice = _explained(tls_error)
        return f"no answer from {api_url}: TLS failed: {why}\n{advice}"
    told = f"no answer from {api_url}: {str(error).removesuffix(f' ({api_url})')}"
    if api_url.startswith("http://") and error.request_sent and error.__cause__ is not None:
        return f"{told}\nSomething listens there: if it speaks TLS, its address begins with https://."
    return (
        f"{told}\n"
        f"Is the server running there? {API_URL_VARIABLE} or --api-url names another one;\n"
        "`volcano-locks dev` starts one for trying out."
    )


def _explained(error: "ssl.SSLError") -> tuple[str, str]:
    """What went wrong, and what to try."""
    why = (error.reason or "the handshake broke off").lower().replace("_", " ")
    code = getattr(error, "verify_code", None)
    if code is not None:
        why = str(getattr(error, "verify_message", why)).rstrip(".")
    if error.reason in _NO_TLS_THERE:
        return why, "What listens there speaks no TLS: its address begins with http://,\nor another port was meant."
    if code is None:
        return why, "Do both sides speak a common version of TLS?"
    if code in (_HOST_NAME_MISMATCH, _IP_ADDRESS_MISMATCH):
        return why, f"Name the server as its certificate does, in {API_URL_VARIABLE} or --api-url."
    if code in (_CERTIFICATE_NOT_YET_VALID, _CERTIFICATE_EXPIRED):
        return why, "Its certificate has to be renewed, or the clock of this machine is wrong."
    return why, (
        "This machine does not trust who signed its certificate: put the certificate of\n"
        "that authority (PEM) into a file and name the file in SSL_CERT_FILE."
    )


def _tls_error(error: BaseException) -> "ssl.SSLError | None":
    """The failure of TLS that `error` came of."""
    import ssl  # noqa: PLC0415 - a command that gets its answer need not load it

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause
