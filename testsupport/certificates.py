"""Self-signed TLS certificates for 127.0.0.1, and clients that trust them."""

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY_MODE = 0o600


class CertificateFiles(NamedTuple):
    """The PEM files of a certificate and its private key."""

    certificate: Path
    key: Path

    def trusting_context(self) -> ssl.SSLContext:
        """The TLS context of a client that accepts only this certificate."""
        return ssl.create_default_context(cafile=str(self.certificate))


def new_certificate(
    directory: Path, *, name: str = "localhost", expires_at: datetime.datetime | None = None
) -> CertificateFiles:
    """Write a new certificate and key, over files of an earlier call. It is valid for a year by default."""
    now = datetime.datetime.now(datetime.UTC)
    ends = expires_at or now + datetime.timedelta(days=365)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - datetime.timedelta(days=1))
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = CertificateFiles(directory / "certificate.pem", directory / "key.pem")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.touch(KEY_MODE)
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
