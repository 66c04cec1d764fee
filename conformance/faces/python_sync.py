"""The face of the Python client for threads. The block is entered and left on the calling thread."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from volcano_locks import Client, LockGuard, VolcanoError
from volcano_locks.client import LockBlock

from .face import Answer
from .failures import failure, race_told
from .python import Backend, BodyCancelled, BodyError, PythonFace, guard_told, lease_told
from .service import tokens_of


class PythonSyncFace(PythonFace):
    """One `Client` per actor."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._clients: Final[dict[str, Client]] = {}
        self._blocks: Final[dict[tuple[str, str], tuple[LockBlock, LockGuard]]] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._backend.close()

    def _client(self, actor: str) -> Client:
        if actor not in self._clients:
            self._clients[actor] = Client(
                self._backend.url, self._backend.service_key, clock=self._clock, transport=self._transport(actor)
            )
        return self._clients[actor]

    def _call(self, actor: str, name: str, *args: object, **options: object) -> object:
        return getattr(self._client(actor).locks, name)(*args, **options)

    def _race(self, args: Mapping[str, object]) -> Answer:
        locks = self._client("racers").locks

        def acquire(token: str) -> Answer:
            try:
                return lease_told(locks.acquire(str(args["key"]), ttl=int(str(args["ttl_seconds"])), token=token))
            except VolcanoError as error:
                return failure(str(error.code))

        with ThreadPoolExecutor(len(tokens_of(args))) as threads:
            return race_told(list(threads.map(acquire, tokens_of(args))))

    def _enter(self, args: Mapping[str, object]) -> LockGuard:
        locks = self._client(str(args["actor"])).locks
        token = args["token"]
        block = locks.with_lock(
            str(args["key"]), ttl=int(str(args["ttl_seconds"])), token=None if token is None else str(token)
        )
        guard = block.__enter__()
        self._blocks[_place(args)] = block, guard
        return guard

    def _guard(self, args: Mapping[str, object]) -> Answer:
        return guard_told(self._blocks[_place(args)][1])

    def _exit(self, args: Mapping[str, object]) -> None:
        block, _guard = self._blocks[_place(args)]
        match args.get("body", "returns"):
            case "raises":
                error: BaseException | None = BodyError("the body's own error")
            case "cancelled":
                error = BodyCancelled()
            case _:
                error = None
        block.__exit__(None if error is None else type(error), error, None)
        if error is not None:
            raise error


def _place(args: Mapping[str, object]) -> tuple[str, str]:
    return str(args["actor"]), str(args["key"])
