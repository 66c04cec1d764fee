"""The shipped configurations of nginx and HAProxy, with the addresses and files of a test."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testsupport.certificates import CertificateFiles
from testsupport.engines import proxies

DEPLOY = Path(__file__).parents[2] / "deploy"


def replaced(text: str, values: dict[str, str]) -> str:
    """The text with each name replaced by its value. Each name must occur exactly once."""
    for name, value in values.items():
        assert text.count(name) == 1, f"{name!r} occurs {text.count(name)} times"
        text = text.replace(name, value)
    return text


def _files_for_the_proxy(certificate: CertificateFiles, folder: Path) -> dict[str, Path]:
    """Copies in the proxy's folder, which its user owns."""
    user = folder.owner()
    copies = {"chain": folder / "chain.pem", "key": folder / "key.pem", "both": folder / "both.pem"}
    copies["chain"].write_bytes(certificate.certificate.read_bytes())
    copies["key"].write_bytes(certificate.key.read_bytes())
    copies["both"].write_bytes(certificate.certificate.read_bytes() + certificate.key.read_bytes())
    for copy in copies.values():
        shutil.chown(copy, user)
    return copies


@contextmanager
def nginx(nodes: tuple[str, str], certificate: CertificateFiles) -> Iterator[str]:
    """nginx as shipped, in front of two nodes (`127.0.0.1:port`). Yields its own address."""

    def site(folder: Path, port: int) -> str:
        files = _files_for_the_proxy(certificate, folder)
        return replaced(
            (DEPLOY / "nginx/volcano-locks.conf").read_text(),
            {
                "10.77.0.11:7420": nodes[0],
                "10.77.0.12:7420": nodes[1],
                "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
                "/etc/ssl/volcano-locks/chain.pem": str(files["chain"]),
                "/etc/ssl/volcano-locks/key.pem": str(files["key"]),
            },
        )

    with proxies.nginx_site(site) as address:
        yield address


@contextmanager
def haproxy(nodes: tuple[str, str], certificate: CertificateFiles) -> Iterator[str]:
    """HAProxy as shipped, as `nginx`."""

    def configuration(folder: Path, port: int) -> str:
        files = _files_for_the_proxy(certificate, folder)
        return replaced(
            (DEPLOY / "haproxy/haproxy.cfg").read_text(),
            {
                "    user haproxy\n    group haproxy\n": "",  # the test's HAProxy does not start as root
                "    maxconn 20000\n": "    maxconn 200\n",  # within the test's limit of open files
                "    log /dev/log local0\n": "    log stderr local0\n",
                "10.77.0.11:7420": nodes[0],
                "10.77.0.12:7420": nodes[1],
                "bind :443 ssl crt /etc/haproxy/volcano-locks.pem": f"bind 127.0.0.1:{port} ssl crt {files['both']}",
            },
        )

    with proxies.haproxy_with(configuration) as address:
        yield address
