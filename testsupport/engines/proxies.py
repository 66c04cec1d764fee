"""nginx and HAProxy as Debian packages them: reverse proxies in front of one server, on loopback ports.

Both share their connections to the server between clients, and both are configured to forward Upgrade headers, as usual
for WebSockets. Both send X-Forwarded-For: nginx in one field, HAProxy in a field of its own beside the client's.
"""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from .processes import ended, folder_for, free_port, program, started, user_of, wait_until

Configure = Callable[[Path, int], str]
"""Gets a folder of the proxy's user and a free port, returns a configuration."""

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
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
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
    option forwardfor
frontend clients
    bind 127.0.0.1:{port}
    default_backend server
backend server
    server server {server} maxconn 1
"""


NGINX_AROUND_SITE = """
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
    {site}
}}
"""


@contextmanager
def nginx(server: str) -> Iterator[str]:
    """An nginx in front of the server at `server` (`127.0.0.1:port`). Yields its own address in the same form."""
    with _running("nginx", lambda folder, port: NGINX.format(folder=folder, port=port, server=server)) as address:
        yield address


@contextmanager
def haproxy(server: str) -> Iterator[str]:
    """A HAProxy in front of the server at `server` (`127.0.0.1:port`). Yields its own address in the same form."""
    with _running("haproxy", lambda _, port: HAPROXY.format(port=port, server=server)) as address:
        yield address


@contextmanager
def nginx_site(configure: Configure) -> Iterator[str]:
    """An nginx with the site that `configure` returns, which listens on the port that it gets. Yields its address."""

    def around(folder: Path, port: int) -> str:
        return NGINX_AROUND_SITE.format(folder=folder, site=configure(folder, port))

    with _running("nginx", around) as address:
        yield address


@contextmanager
def haproxy_with(configure: Configure) -> Iterator[str]:
    """A HAProxy with the whole configuration that `configure` returns, as `nginx_site`."""
    with _running("haproxy", configure) as address:
        yield address


@contextmanager
def _running(name: str, configure: Configure) -> Iterator[str]:
    words = {"nginx": ["-c"], "haproxy": ["-db", "-f"]}[name]
    user, port, end = user_of("www-data"), free_port(), "SIGTERM"
    with folder_for(user, f"{name}-") as folder:
        log, configuration = folder / "log", folder / "configuration"
        configuration.write_text(configure(folder, port))
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
