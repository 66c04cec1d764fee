"""Stored names and messages between nodes keep the form of 0.1.0, whose files and nodes must still work."""

import pytest

from volcano_locks_server.events import peer_messages
from volcano_locks_server.events.peer_messages import EventMessage, Interest, InterestAccepted, LockFreed, QueueLength
from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.lease import Free, Held, LockRecord, QueueState
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores.etcd import records
from volcano_locks_server.stores.etcd.layout import Layout
from volcano_locks_server.stores.sqlite.connection import APPLICATION_ID

RECORDS: dict[bytes, LockRecord] = {
    b'{"state":"held","fencing_token":7,"owner_digest":"0aff","expires_at_ms":40,"deadline_ms":50,"acquired_at_ms":10,'
    b'"renewed_at_ms":20,"ttl_seconds":30,"holder":"web-1"}': Held(b"\x0a\xff", 7, 40, 50, 10, 20, 30, "web-1"),
    b'{"state":"held","fencing_token":7,"owner_digest":"0aff","expires_at_ms":40,"deadline_ms":50,"acquired_at_ms":10,'
    b'"renewed_at_ms":20,"ttl_seconds":30}': Held(b"\x0a\xff", 7, 40, 50, 10, 20, 30),
    b'{"state":"free","fencing_token":7,"freed_at_ms":40,"retired_digests":["0aff"]}': Free(7, 40, (b"\x0a\xff",)),
    b'{"state":"free","fencing_token":7,"freed_at_ms":40,"queue_state":{"waited":true,"waiting_nodes":["a"],'
    b'"withdrawn":["Cv8="],"withdrawn_at_ms":30}}': Free(7, 40, (), QueueState(True, ("a",), (b"\x0a\xff",), 30)),
}
MESSAGES = {
    b'["hear","n",true,false,true]': Interest("n", True, False, True),
    b'["telling","n","m",true,false]': InterestAccepted("n", "m", True, False),
    b'["line","n","p","k",3]': QueueLength("n", "p", "k", 3),
    b'["freed","n","p","k"]': LockFreed("n", "p", "k"),
    b'["event","n","expired","p","k",7,"web-1",10,"why",null,null]': EventMessage(
        "n", "expired", "p", "k", 7, "web-1", 10, "why", None, None
    ),
}


@pytest.mark.parametrize("stored", RECORDS)
def test_a_lock_record_in_etcd_keeps_its_json(stored: bytes) -> None:
    assert records.encode(RECORDS[stored]) == stored
    assert records.decode(stored) == RECORDS[stored]


def test_the_keys_in_etcd_keep_their_paths() -> None:
    layout = Layout("locks")
    assert layout.lock(RecordKey("p", LockKey("a/b"))) == b"locks/1/lock/p/a/b"
    assert [layout.schema, layout.project("p"), layout.project_name("n"), layout.key_name("p", "n")] == [
        b"locks/schema",
        b"locks/1/project/p",
        b"locks/1/project-name/n",
        b"locks/1/project-key/p/n",
    ]
    assert [layout.service_key("k"), layout.secret(b"\x0a"), layout.deletion("p"), layout.quota("p")] == [
        b"locks/1/service-key/k",
        b"locks/1/secret/0a",
        b"locks/1/deleting/p",
        b"locks/1/quota/p",
    ]
    assert [layout.admin_token("t"), layout.admin_token_name("n"), layout.admin_secret(b"\x0a")] == [
        b"locks/1/admin-token/t",
        b"locks/1/admin-token-name/n",
        b"locks/1/admin-secret/0a",
    ]


def test_a_sqlite_file_keeps_its_mark() -> None:
    assert APPLICATION_ID == 0x564C434B


@pytest.mark.parametrize("sent", MESSAGES)
def test_a_message_between_nodes_keeps_its_form(sent: bytes) -> None:
    assert peer_messages.encode(MESSAGES[sent]) == sent
    assert peer_messages.parse(sent) == MESSAGES[sent]


def test_an_event_of_a_node_of_0_1_0_has_no_reason() -> None:
    """EVENT-10; such a node ignores the last element."""
    sent = b'["event","n","expired","p","k",7,"web-1",10,"why",null]'
    assert peer_messages.parse(sent) == EventMessage("n", "expired", "p", "k", 7, "web-1", 10, "why", None)
