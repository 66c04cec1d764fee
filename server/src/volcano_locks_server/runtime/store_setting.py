"""Chooses the store's URL among an option, a variable and a file, and refuses one that exposes secrets (CLI-37)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..stores.url_safety import has_password, plaintext_hosts
from .secret_file import SecretFileError, read_secret

URL_VARIABLE: Final = "VOLCANO_LOCKS_STORE"
FILE_VARIABLE: Final = "VOLCANO_LOCKS_STORE_URL_FILE"
_IN_ARGUMENTS: Final = (
    "contains a password, which every user of the machine can read in the list of processes: put the URL into "
    "{variable}{file}"
)


class StoreRefusedError(ValueError):
    """The store's URL cannot be used. The message does not contain it."""


def chosen_store(flags: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """The URL that the options or else the variables give, directly or in a file; None if neither does.

    Raises StoreRefusedError.
    """
    option, option_file = flags.get("store"), flags.get("store_url_file")
    if option is not None:
        refuse_password(str(option), "store (--store)", URL_VARIABLE, " or into a file that --store-url-file names")
    for url, file in (
        (option, option_file),
        (environ.get(URL_VARIABLE) or None, environ.get(FILE_VARIABLE) or None),
    ):
        if url is not None and file is not None:
            raise StoreRefusedError(
                f"store_url_file (--store-url-file, {FILE_VARIABLE}) and store (--store, {URL_VARIABLE}) both name a "
                "store: give one of them"
            )
        if url is not None or file is not None:
            return str(url) if file is None else _url_in(Path(str(file)))
    return None


def refuse_password(url: str, source: str, variable: str, or_file: str = "") -> None:
    """Raise StoreRefusedError if a URL from the command's arguments contains a password."""
    if has_password(url):
        raise StoreRefusedError(f"{source} {_IN_ARGUMENTS.format(variable=variable, file=or_file)}")


def refuse_plaintext(url: str, source: str, environ: Mapping[str, str]) -> None:
    """Raise StoreRefusedError if the store is beyond this machine and TLS is not required."""
    hosts = plaintext_hosts(url, environ)
    if hosts:
        raise StoreRefusedError(
            f"{source} connects to {', '.join(hosts)} without TLS: add sslmode=verify-full to a URL of PostgreSQL, or "
            "tls=1 to one of etcd; if the network in between is trusted, give --allow-plaintext-store"
        )


def _url_in(path: Path) -> str:
    try:
        return read_secret(path)
    except SecretFileError as error:
        raise StoreRefusedError(f"store_url_file (--store-url-file, {FILE_VARIABLE}) {error}") from None
