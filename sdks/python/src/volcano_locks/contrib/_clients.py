"""The client that integrations use unless they are given one."""

from functools import cache

from volcano_locks import Client


@cache
def default_client() -> Client:
    """One client per process, with the settings of `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`.

    A forked child may use its parent's client, which then opens connections of its own (SDK-6).
    """
    return Client()
