"""Readers of event streams: each subscribes at a node, reads what comes, and reconnects when its stream ends."""

from random import Random
from typing import Final

from volcano_locks_server.events import Subscriber

from .checks.streams import Stream
from .deployment import PROJECTS, Deployment
from .node import Node, Process

RECONNECT_SECONDS: Final = 1.0
STAY_SECONDS: Final = 60.0


class Reader:
    """One reader of all events of a project. It resumes after the last id if it comes back to the same node."""

    def __init__(self, deployment: Deployment, number: int) -> None:
        self.name: Final = f"reader-{number}"
        self._deployment: Final = deployment
        self._random: Final[Random] = deployment.world.random_for(self.name)
        self._project_id: Final = PROJECTS[number % 2]
        self._last: tuple[Process, str] | None = None
        self.connect()

    def connect(self) -> None:
        node = self._random.choice(self._deployment.nodes)
        process = node.process
        if process is None or not process.is_serving:
            self._deployment.world.after(RECONNECT_SECONDS, self.connect)
        else:
            process.spawn(lambda: self._read(node, process))

    async def _read(self, node: Node, process: Process) -> None:
        """Runs in the node's process; the stream ends with it."""
        deployment, world = self._deployment, self._deployment.world
        subscriber = Subscriber(self._project_id)
        after = self._last[1] if self._last is not None and self._last[0] is process else None
        world.after(self._random.expovariate(1 / STAY_SECONDS), self._leave, process, subscriber)
        await process.subscribe(subscriber, after)
        stream = Stream(self.name, node.name, self._project_id, world.now)
        deployment.checker.streams.opened(stream)
        self._watch_process(process, stream)
        last_id = subscriber.began_at
        while not subscriber.ended:
            for numbered in await subscriber.take():
                deployment.checker.streams.read(stream, numbered)
                last_id = numbered.id
        assert process.service is not None
        process.service.hub.unsubscribe(subscriber)
        self._last = process, last_id
        self._closed(stream)

    def _leave(self, process: Process, subscriber: Subscriber) -> None:
        if not process.loop.is_killed:
            process.loop.call_soon(subscriber.end)

    def _watch_process(self, process: Process, stream: Stream) -> None:
        """Notice that the process is gone; nothing in it can report that."""
        if stream.is_open and process.loop.is_killed:
            self._closed(stream)
        elif stream.is_open:
            self._deployment.world.after(RECONNECT_SECONDS, self._watch_process, process, stream)

    def _closed(self, stream: Stream) -> None:
        self._deployment.checker.streams.closed(stream)
        self._deployment.world.after(RECONNECT_SECONDS, self.connect)
