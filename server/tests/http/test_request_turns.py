"""A flood of requests of unknown keys does not fill a turn of the event loop (HTTP-24, case 60)."""

import asyncio

from volcano_locks_server.http.server.request_turns import STARTS_PER_TURN, RequestTurns


class Requests:
    """Notes which ones have started, in order."""

    def __init__(self) -> None:
        self.turns = RequestTurns()
        self.started: list[str] = []

    async def request(self, name: str) -> None:
        self.started.append(name)

    def start(self, name: str, *, is_known: bool) -> None:
        self.turns.start(self.request(name), is_known=is_known)


async def test_a_turn_starts_a_bounded_number_of_requests_in_order() -> None:
    requests = Requests()
    names = [f"stranger-{number}" for number in range(5 * STARTS_PER_TURN)]
    for name in names:
        requests.start(name, is_known=False)
    most = 0
    while len(requests.started) < len(names):
        before = len(requests.started)
        await asyncio.sleep(0)
        most = max(most, len(requests.started) - before)
    assert requests.started == names
    assert most == STARTS_PER_TURN


async def test_requests_of_a_known_key_do_not_wait_behind_strangers() -> None:
    requests = Requests()
    for number in range(5 * STARTS_PER_TURN):
        requests.start(f"stranger-{number}", is_known=False)
    requests.start("known", is_known=True)
    await asyncio.sleep(0)
    assert requests.started[-1] == "known"
    assert len(requests.started) == STARTS_PER_TURN + 1


async def test_a_request_that_comes_later_does_not_overtake() -> None:
    requests = Requests()
    for number in range(STARTS_PER_TURN + 2):
        requests.start(f"stranger-{number}", is_known=False)
    await asyncio.sleep(0)
    requests.start("later", is_known=False)
    for _ in range(4):
        await asyncio.sleep(0)
    assert requests.started[-1] == "later"
    assert len(requests.started) == STARTS_PER_TURN + 3


async def test_cancel_ends_the_running_and_the_waiting() -> None:
    requests = Requests()
    running = asyncio.Event()
    for _ in range(2 * STARTS_PER_TURN):
        requests.turns.start(wait_forever(running), is_known=False)
    await asyncio.sleep(0)
    await requests.turns.cancel(1)
    assert running.is_set()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "request"]


async def wait_forever(running: asyncio.Event) -> None:
    running.set()
    await asyncio.Event().wait()
