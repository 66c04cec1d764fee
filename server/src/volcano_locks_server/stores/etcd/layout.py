"""The store's keys in etcd.

    <prefix>/schema                                  the layout's version, SCHEMA; others are refused
    <prefix>/1/lock/<project id>/<lock key>          a lock record
    <prefix>/1/history/<project id>/<key>,…          holds of a lock that ended in one batch (see `history`)
    <prefix>/1/project/<project id>                  a project; lists are in order of the revision that created it
    <prefix>/1/project-name/<name>                   the id of the project of that name
    <prefix>/1/project-key/<project id>/<name>       the id of the service key of that name; also the project's list
    <prefix>/1/service-key/<key id>                  a service key and the digests of its secrets
    <prefix>/1/secret/<SHA-256 in hex>               the ids of the project and the key that this secret belongs to
    <prefix>/1/admin-token/<token id>                an admin token and its digest
    <prefix>/1/admin-token-name/<name>               the id of the admin token of that name
    <prefix>/1/admin-secret/<SHA-256 in hex>         the id of the admin token with that digest
    <prefix>/1/dashboard-session/<SHA-256 in hex>    a session of the dashboard, or a one-time code for one
    <prefix>/1/audit/<reversed id>                   an entry of the audit; the latest comes first
    <prefix>/1/audit-of/<project id>/<reversed id>   the same entry, with those of its project
    <prefix>/1/deleting/<project id>                 a deleted project, whose keys and locks are still being deleted
    <prefix>/1/quota/<project id>                    the project's shared request count
    <prefix>/1/node/<node id>                        a node's latest instant
    <prefix>/1/clock                                 the past of the store's clock; absent before a node has served
    <prefix>/1/clock-reset                           how far an unfinished reset sets the clock back
    <prefix>/1/signal/<node id>                      a node's latest signal packet
    <prefix>/1/purger                                the key of the node that purges
    <prefix>/1/probe                                 written to measure the latency, then deleted

Values are JSON with the names of the glossary. The number in the path is the layout's version: a layout that older
releases cannot read has another path, so that old and new releases never read each other's values.
"""

from typing import Final

from ...ports.lock_store import RecordKey
from ...rules.values import LockKey

SCHEMA: Final = 1
LOADING: Final = b"loading"  # the value of `schema` during a load
RESETTING: Final = b"resetting"  # the same while the clock is set back


class Layout:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = f"{prefix}/".encode()
        self.schema: Final = self.prefix + b"schema"
        parts = prefix.split("/")
        self.outer_schemas: Final = tuple(
            f"{'/'.join(parts[:count])}/schema".encode() for count in range(1, len(parts))
        )
        """The schema keys of stores inside whose prefix this one would lie."""
        self.root: Final = f"{prefix}/{SCHEMA}/".encode()
        self.locks: Final = self.root + b"lock/"
        self.history: Final = self.root + b"history/"
        self.service_keys: Final = self.root + b"service-key/"
        self.secrets: Final = self.root + b"secret/"
        self.projects: Final = self.root + b"project/"
        self.project_names: Final = self.root + b"project-name/"
        self.key_names: Final = self.root + b"project-key/"
        self.admin_tokens: Final = self.root + b"admin-token/"
        self.admin_token_names: Final = self.root + b"admin-token-name/"
        self.admin_secrets: Final = self.root + b"admin-secret/"
        self.sessions: Final = self.root + b"dashboard-session/"
        self.audit: Final = self.root + b"audit/"
        self.audits_of_projects: Final = self.root + b"audit-of/"
        self.deletions: Final = self.root + b"deleting/"
        self.nodes: Final = self.root + b"node/"
        self.signals: Final = self.root + b"signal/"
        self.clock: Final = self.root + b"clock"
        self.clock_reset: Final = self.root + b"clock-reset"
        self.purger: Final = self.root + b"purger"
        self.probe: Final = self.root + b"probe"

    def lock(self, record_key: RecordKey) -> bytes:
        return self.locks + f"{record_key.project_id}/{record_key.key}".encode()

    def record_key(self, lock: bytes) -> RecordKey:
        """The record key of the etcd key `lock`."""
        project_id, _, key = lock[len(self.locks) :].decode("utf-8", "backslashreplace").partition("/")
        return RecordKey(project_id, LockKey(key))

    def locks_of(self, project_id: str) -> bytes:
        return self.locks + f"{project_id}/".encode()

    def history_of(self, project_id: str) -> bytes:
        return self.history + f"{project_id}/".encode()

    def project(self, project_id: str) -> bytes:
        return self.projects + project_id.encode()

    def project_name(self, name: str) -> bytes:
        return self.project_names + name.encode()

    def keys_of(self, project_id: str) -> bytes:
        return self.key_names + f"{project_id}/".encode()

    def key_name(self, project_id: str, name: str) -> bytes:
        return self.keys_of(project_id) + name.encode()

    def service_key(self, key_id: str) -> bytes:
        return self.service_keys + key_id.encode()

    def secret(self, digest: bytes) -> bytes:
        return self.secrets + digest.hex().encode()

    def admin_token(self, token_id: str) -> bytes:
        return self.admin_tokens + token_id.encode()

    def admin_token_name(self, name: str) -> bytes:
        return self.admin_token_names + name.encode()

    def admin_secret(self, digest: bytes) -> bytes:
        return self.admin_secrets + digest.hex().encode()

    def audit_of(self, project_id: str) -> bytes:
        return self.audits_of_projects + f"{project_id}/".encode()

    def session(self, digest: bytes) -> bytes:
        return self.sessions + digest.hex().encode()

    def deletion(self, project_id: str) -> bytes:
        return self.deletions + project_id.encode()

    def quota(self, project_id: str) -> bytes:
        return self.root + f"quota/{project_id}".encode()

    def node(self, node_id: str) -> bytes:
        return self.nodes + node_id.encode()

    def signal(self, node_key: bytes) -> bytes:
        """The signal key of the node that announces itself at `node_key`."""
        return self.signals + node_key[len(self.nodes) :]


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with `prefix`, which ends with a slash."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def after(key: bytes) -> bytes:
    """The first key after `key`."""
    return key + b"\0"
