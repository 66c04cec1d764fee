"""All checks in the order in which they are told: whose promise each is, and the rules it stands for.

`public` is what the public API says of itself and what its own clients count on. `ours` is what this project's
contract adds or settles where the public one leaves it open: retired tokens, repeated releases, the codes of
refusals beside the two of 409, request ids that come back or are made, the holder's label.

Not checked: the owners' reserve (QUOTA-5), since it shows only when the project's quota is spent; the deadline
after 90 days; that what was acknowledged outlives a crash.
"""

from typing import Final

from . import block_checks, expiry_checks, http_checks, ownership_checks
from .check import Check

CHECKS: Final = (
    Check("of several who ask, one wins", "public", ("LEASE-6",), ownership_checks.two_holders_one_wins),
    Check(
        "the same token again is the same lease",
        "public",
        ("LEASE-4",),
        ownership_checks.the_same_token_is_the_same_lease,
    ),
    Check("a renewal sets the expiry anew", "public", ("LEASE-8",), ownership_checks.a_renewal_sets_the_expiry),
    Check("a release frees the lock", "public", ("LEASE-9",), ownership_checks.a_release_frees),
    Check("only the owner renews and releases", "public", ("LEASE-8", "LEASE-9"), ownership_checks.only_the_owner_may),
    Check("a late renewal creates nothing", "public", ("LEASE-8",), ownership_checks.a_late_renewal_creates_nothing),
    Check("a free lock may be force released", "public", ("LEASE-10",), ownership_checks.a_free_lock_may_be_forced),
    Check("a release may be repeated", "ours", ("LEASE-9",), ownership_checks.a_release_may_be_repeated),
    Check("a retired token stays out", "ours", ("LEASE-11",), ownership_checks.a_retired_token_stays_out),
    Check(
        "the fencing token rises over a release",
        "public",
        ("LEASE-3",),
        ownership_checks.the_fence_rises_over_a_release,
    ),
    Check(
        "the fencing token rises over a force release",
        "public",
        ("LEASE-3", "LEASE-10"),
        ownership_checks.the_fence_rises_over_a_force_release,
    ),
    Check("a lower fencing token is refused", "public", ("LEASE-3",), ownership_checks.a_lower_fence_is_refused),
    Check("what a read says", "public", ("LEASE-12", "HTTP-3"), http_checks.what_a_read_says),
    Check("a key is decoded once", "public", ("HTTP-7",), http_checks.a_key_is_decoded_once),
    Check("quota headers", "public", ("QUOTA-3",), http_checks.quota_headers),
    Check(
        "wrong input is refused",
        "public",
        ("HTTP-7", "HTTP-8", "HTTP-9", "HTTP-11"),
        http_checks.wrong_input_is_refused,
    ),
    Check("no credential, no answer", "public", ("HTTP-14",), http_checks.no_credential_no_answer),
    Check("refusals have codes", "ours", ("HTTP-17", "HTTP-18"), http_checks.refusals_have_codes),
    Check("input is strict", "ours", ("HTTP-11", "HTTP-12"), http_checks.input_is_strict),
    Check("another kind of credential", "ours", ("HTTP-14", "HTTP-15"), http_checks.another_kind_of_credential),
    Check("request ids are echoed and made", "ours", ("HTTP-9",), http_checks.request_ids),
    Check("holder labels", "ours", ("HTTP-10",), http_checks.holder_labels),
    Check("addresses and methods", "ours", ("HTTP-6",), http_checks.addresses_and_methods),
    Check("no secret comes back", "ours", ("LEASE-15", "HTTP-8", "HTTP-19"), http_checks.no_secret_comes_back),
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
