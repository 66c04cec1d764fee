"""Celery: a task that runs at most once at a time per key, over all workers.

    app = Celery("shop")

    @exclusive_task(app, key="invoice-{customer}", ttl=60, on_held="retry")
    def invoice(customer: str, guard: LockGuard | None = None) -> None: ...

Limit: a lease cannot stop a paused worker. Send `guard.fencing_token` with every write.
"""

import inspect
import random
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, get_args

from celery import Celery, Task
from celery.exceptions import Reject, Retry

from volcano_locks import Client, LockHeldError
from volcano_locks.contrib._clients import default_client
from volcano_locks.contrib._interrupts import interrupted_by_loss
from volcano_locks.features.exclusive import GUARD, GuardedFunction, checked_plain, checked_result

OnHeld = Literal["skip", "retry", "raise"]

RETRY_SECONDS = 10.0
RETRIES_MAX = 1_000
RETRIES_HEADER = "volcano_locks_retries"
"""The message's header that counts how often its key was held. Celery's own `retries` stays that of failures."""


def exclusive_task(
    app: Celery,
    *,
    key: str,
    ttl: int = 60,
    on_held: OnHeld = "skip",
    retry_every: float = RETRY_SECONDS,
    retries_max: int = RETRIES_MAX,
    hold_at_least: float | None = None,
    client: Callable[[], Client] = default_client,
    **task_options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """A decorator like `app.task`: at most one run per key at a time, over all workers.

        @exclusive_task(app, key="rollup-{day}", ttl=60, acks_late=True)
        def rollup(day: str, guard: LockGuard | None = None) -> None:
            write_report(day, fencing_token=guard.fencing_token)

    `key` is a template of the task's arguments, and an argument named `guard` gets the block's guard, as with
    `client.locks.exclusive`; `task_options` go to `app.task`. If the key is held, `on_held` decides: `skip` ends the
    task as a success with the result None, `retry` sends the message again, about `retry_every` seconds later and at
    most `retries_max` times, so that no worker waits, and `raise` fails the task with `LockHeldError`. A message that
    was started before (redelivered or retried) is not skipped but retried, because its earlier run may have died and
    left the lock to expire.

    Loss of the lease raises `LockOwnershipLostError` inside the running task in prefork, solo and gevent pools. In
    thread pools the task must check `guard.lost`. `client` returns the client to use, once per process.
    """
    if on_held not in get_args(OnHeld):
        raise ValueError(f"on_held must be skip, retry or raise, got {on_held!r:.100}")
    bind = bool(task_options.pop("bind", False))

    def decorated(function: Callable[..., Any]) -> Any:
        checked_plain(function)
        guarded = GuardedFunction(key, "raise", function)

        @wraps(function)
        def run(task: Task, /, *args: Any, **kwargs: Any) -> Any:
            bound = (task, *args) if bind else args
            entered = False
            try:
                with (
                    client().locks.with_lock(guarded.key(bound, kwargs), ttl=ttl, hold_at_least=hold_at_least) as guard,
                    interrupted_by_loss(guard),
                ):
                    entered = True
                    return checked_result(function, function(*bound, **guarded.with_guard(guard, bound, kwargs)))
            except LockHeldError as error:
                if entered:
                    raise
                held = error
            if on_held == "retry" or (on_held == "skip" and _was_started(task)):
                raise _sent_again(task, held, retry_every, retries_max)
            if on_held == "raise":
                raise held
            return None

        run.__signature__ = _task_signature(function, bind)  # type: ignore[attr-defined]  # Celery checks calls by it
        return app.task(bind=True, **task_options)(run)

    return decorated


def _was_started(task: Task) -> bool:
    """Whether this message was started before: its earlier run may have died and left the lock to expire."""
    request = task.request
    redelivered = bool((request.delivery_info or {}).get("redelivered"))
    return redelivered or request.retries > 0 or _retries(task) > 0


def _retries(task: Task) -> int:
    return int((task.request.headers or {}).get(RETRIES_HEADER, 0))


def _sent_again(task: Task, held: LockHeldError, retry_every: float, retries_max: int) -> Exception:
    """Send the message again, to run later, as `Task.retry` does but without counting a failure."""
    request, retries = task.request, _retries(task) + 1
    if retries > retries_max or request.called_directly or request.is_eager:
        return held
    seconds = retry_every * random.uniform(0.75, 1.25)  # noqa: S311 - so that messages for one key spread out
    again = task.signature_from_request(
        countdown=seconds, headers={**(request.headers or {}), RETRIES_HEADER: retries}, retries=request.retries
    )
    try:
        again.apply_async()
    except Exception as error:  # noqa: BLE001 - the broker still has the message of a task with acks_late
        failure: Exception = Reject(error, requeue=True) if task.acks_late else error
        return failure
    retry: Exception = Retry(exc=held, when=seconds, sig=again)
    return retry


def _task_signature(function: Callable[..., Any], bind: bool) -> inspect.Signature:
    """The signature of `function` as a bound task, without the guard."""
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name != GUARD]
    if not bind:
        parameters.insert(0, inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY))
    return signature.replace(parameters=parameters)
