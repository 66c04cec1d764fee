"""The TLS certificate of a server: loaded at the start and on request, and watched for its expiry (HTTP-31, OPS-7)."""

import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ..http.codec import instant
from ..ports.clock import Clock, Timer
from ..telemetry import Log, Metrics
from .settings import Settings, SettingsError

WARNING_DAYS: Final = 14
DAY_MS: Final = 86_400_000


class Certificate(NamedTuple):
    """A loaded certificate chain with its key. `expires_at_ms` is the expiry of the first certificate."""

    context: ssl.SSLContext
    expires_at_ms: int


class CertificateWatch:
    """Holds the certificate of the settings' files, and warns from WARNING_DAYS before it expires.

    Raises SettingsError if the files cannot be used. Call `stop` after `start`.
    """

    def __init__(self, certificate: Path, key: Path, clock: Clock, log: Log, metrics: Metrics) -> None:
        self._files: Final = certificate, key
        self._clock: Final = clock
        self._log: Final = log
        self._metrics: Final = metrics
        self._use: Callable[[ssl.SSLContext], None] | None = None
        self._timer: Timer | None = None
        self._now = load_certificate(certificate, key)

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new handshakes."""
        return self._now.context

    def start(self, use: Callable[[ssl.SSLContext], None]) -> None:
        """Call `use` with the context, and with each one that replaces it, and watch the expiry."""
        self._use = use
        use(self._now.context)
        self._check()

    def stop(self) -> None:
        self._use = None
        if self._timer is not None:
            self._timer.cancel()

    def reload(self) -> None:
        """Load the files again. If they cannot be used, log the reason and keep the current certificate."""
        try:
            self._now = load_certificate(*self._files)
        except SettingsError as error:
            self._log.warning("certificate_not_reloaded", why=str(error), expires_at=instant(self._now.expires_at_ms))
            return
        self._log.info("certificate_reloaded", expires_at=instant(self._now.expires_at_ms))
        if self._use is not None:
            self.start(self._use)

    def _check(self) -> None:
        """Publish the expiry, warn if it is near, and check again in a day."""
        expires_at_ms = self._now.expires_at_ms
        self._metrics.certificate_expires_seconds = expires_at_ms // 1_000
        days_left = (expires_at_ms - self._clock.now_ms()) // DAY_MS
        if days_left < WARNING_DAYS:
            self._log.warning("certificate_expires_soon", expires_at=instant(expires_at_ms), days_left=days_left)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_in(DAY_MS, self._check, slack_ms=1_000)


def certificate_watch(settings: Settings, clock: Clock, log: Log, metrics: Metrics) -> CertificateWatch | None:
    """The watch of the settings' certificate, None without TLS. Raises SettingsError."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return CertificateWatch(settings.tls_certificate, settings.tls_key, clock, log, metrics)


def load_certificate(certificate: Path, key: Path) -> Certificate:
    """The certificate in these PEM files, for TLS 1.2 and 1.3. Raises SettingsError with the reason."""
    from cryptography import x509  # noqa: PLC0415 - it takes 70 ms, and most servers have no certificate

    try:
        _check_mode(key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certificate, key, password=_refuse_encrypted_key)
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except SettingsError:
        raise
    except ssl.SSLError as error:
        reason = (error.reason or "no such PEM block").replace("_", " ").lower()
        raise _unusable(certificate, key, f"not a certificate chain and its private key ({reason})") from None
    except (OSError, ValueError) as error:
        raise _unusable(certificate, key, getattr(error, "strerror", None) or str(error)) from None
    return Certificate(context, int(first.not_valid_after_utc.timestamp()) * 1_000)


def _check_mode(key: Path) -> None:
    """Raise SettingsError if every user of the machine can read the key. Raises OSError if the file is missing."""
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & stat.S_IROTH:
        how = f"run chmod o-r {key}, or set defaultMode to 0440 for a Kubernetes secret"
        raise SettingsError(f"tls_key (--tls-key) can be read by every user, with mode {mode:04o}: {how}")


def _refuse_encrypted_key() -> str:
    """Instead of asking for the passphrase on the terminal, which would stop the server."""
    raise ValueError("the key is encrypted, and the server cannot ask for its passphrase: store it decrypted")


def _unusable(certificate: Path, key: Path, why: str) -> SettingsError:
    return SettingsError(f"TLS (--tls-certificate, --tls-key) cannot use {certificate} and {key}: {why}")
