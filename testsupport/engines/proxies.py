"""nginx and HAProxy as Debian packages them: reverse proxies in front of one server, on loopback ports.

Both share their connections to the server between clients, and both are configured to forward Upgrade headers, as usual
for WebSockets.
"""

import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

from .processes import ended, folder_for, free_port, program, started, user_of, wait_until

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        '' '';
    }}
    upstream server {{
        server {server};
        keepalive 1;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
        }}
    }}
}}
"""

HAPROXY = """
global
    nbthread 1
defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend clients
    bind 127.0.0.1:{port}
    default_backend server
backend server
    server server {server} maxconn 1
"""


@contextmanager
def nginx(server: str) -> Iterator[str]:
    """An nginx in front of the server at `server` (`127.0.0.1:port`). Yields its own address in the same form."""
    with _proxy(server, "nginx", NGINX, ["-c"], "SIGTERM") as address:
        yield address


@contextmanager
def haproxy(server: str) -> Iterator[str]:
    """A HAProxy in front of the server at `server` (`127.0.0.1:port`). Yields its own address in the same form."""
    with _proxy(server, "haproxy", HAPROXY, ["-db", "-f"], "SIGTERM") as address:
        yield address


@contextmanager
def _proxy(server: str, name: str, settings: str, words: list[str], end: str) -> Iterator[str]:
    user, port = user_of("www-data"), free_port()
    with folder_for(user, f"{name}-") as folder:
        log, configuration = folder / "log", folder / "configuration"
        configuration.write_text(settings.format(folder=folder, port=port, server=server))
        configuration.chmod(0o644)
        with log.open("ab") as output:
            process = started([program(name, name), *words, configuration], user, output, end)
            try:
                wait_until(lambda: _listens(port), process, log)
                yield f"127.0.0.1:{port}"
            finally:
                process.send_signal(getattr(signal, end))
                ended(process)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
