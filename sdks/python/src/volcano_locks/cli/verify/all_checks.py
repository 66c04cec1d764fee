"""All checks in the order of the report, with the kind of each promise and its rules.

`public` is what the public API documents and its own clients rely on. `ours` is what this project adds, or decides
where the public API leaves a choice: retired tokens, repeated releases, error codes other than the two of 409,
generated and echoed request ids, the holder's label.

Not checked: the holders' reserve (QUOTA-5), which shows only when the project's quota is spent; the deadline after 90
days; that acknowledged changes survive a crash.
"""

from typing import Final

from . import block_checks, expiry_checks, http_checks, ownership_checks
from .check import Check

CHECKS: Final = (
    Check("one of several acquires wins", "public", ("LEASE-6",), ownership_checks.one_of_several_acquires_wins),
    Check(
        "a repeated acquire is the same lease",
        "public",
        ("LEASE-4",),
        ownership_checks.the_same_token_is_the_same_lease,
    ),
    Check("a renewal sets a new expiry", "public", ("LEASE-8",), ownership_checks.a_renewal_sets_the_expiry),
    Check("a release frees the lock", "public", ("LEASE-9",), ownership_checks.a_release_frees),
    Check("only the owner renews and releases", "public", ("LEASE-8", "LEASE-9"), ownership_checks.only_the_owner_may),
    Check("a late renewal creates nothing", "public", ("LEASE-8",), ownership_checks.a_late_renewal_creates_nothing),
    Check("a free lock may be force released", "public", ("LEASE-10",), ownership_checks.a_free_lock_may_be_forced),
    Check("a release may be repeated", "ours", ("LEASE-9",), ownership_checks.a_release_may_be_repeated),
    Check("a retired token cannot acquire", "ours", ("LEASE-11",), ownership_checks.a_retired_token_cannot_acquire),
    Check(
        "the fencing token rises after a release",
        "public",
        ("LEASE-3",),
        ownership_checks.the_token_rises_after_a_release,
    ),
    Check(
        "the fencing token rises after a force release",
        "public",
        ("LEASE-3", "LEASE-10"),
        ownership_checks.the_token_rises_after_a_force_release,
    ),
    Check("a lower fencing token is refused", "public", ("LEASE-3",), ownership_checks.a_lower_token_is_refused),
    Check("a read returns the state", "public", ("LEASE-12", "HTTP-3"), http_checks.a_read_returns_the_state),
    Check("a key is decoded once", "public", ("HTTP-7",), http_checks.a_key_is_decoded_once),
    Check("quota headers", "public", ("QUOTA-3",), http_checks.quota_headers),
    Check(
        "wrong input is refused",
        "public",
        ("HTTP-7", "HTTP-8", "HTTP-9", "HTTP-11"),
        http_checks.wrong_input_is_refused,
    ),
    Check("no credential, no response", "public", ("HTTP-14",), http_checks.a_credential_is_required),
    Check("refusals have codes", "ours", ("HTTP-17", "HTTP-18"), http_checks.refusals_have_codes),
    Check("input is strict", "ours", ("HTTP-11", "HTTP-12"), http_checks.input_is_strict),
    Check("an anon key is refused", "ours", ("HTTP-14", "HTTP-15"), http_checks.an_anon_key_is_refused),
    Check("request ids are echoed or generated", "ours", ("HTTP-9",), http_checks.request_ids),
    Check("holder labels", "ours", ("HTTP-10",), http_checks.holder_labels),
    Check("addresses and methods", "ours", ("HTTP-6",), http_checks.addresses_and_methods),
    Check(
        "the owner token is in no response",
        "ours",
        ("LEASE-15", "HTTP-8", "HTTP-19"),
        http_checks.owner_token_not_in_responses,
    ),
    Check("released after success", "public", ("SDK-5",), block_checks.released_after_success),
    Check("released after failure", "public", ("SDK-5",), block_checks.released_after_failure),
    Check("a loss reaches the block", "public", ("SDK-3", "SDK-4"), block_checks.a_loss_reaches_the_block, waits=True),
    Check(
        "a loss cancels an async block", "public", ("SDK-3", "SDK-4"), block_checks.a_loss_cancels_the_block, waits=True
    ),
    Check(
        "no extension in the margin",
        "public",
        ("LEASE-5", "LEASE-8"),
        expiry_checks.no_extension_in_the_margin,
        waits=True,
    ),
    Check(
        "no takeover in the grace",
        "public",
        ("LEASE-6", "LEASE-12"),
        expiry_checks.no_takeover_in_the_grace,
        waits=True,
    ),
    Check(
        "a takeover after the grace",
        "public",
        ("LEASE-3", "LEASE-7"),
        expiry_checks.a_takeover_after_the_grace,
        waits=True,
    ),
)
