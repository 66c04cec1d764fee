"""The nodes and their activity, for the dashboard and for programs that may read locks (UI-10, UI-11)."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..ports.clock import Clock
from ..ports.nodes import NodeView, OtherNode
from ..service.activity import COUNTS, Minute, Times, times_ms
from ..service.lock_service import LockService
from .admin_routes import known_id
from .auth import Principal
from .codec import instant
from .health_routes import HealthRoutes
from .responses import json_response

REPORT_KEPT_MS: Final = 1_000
REPORTS_MAX: Final = 200  # of projects
LOSSES: Final = ("not_renewed", "forced", "ownership_lost")


@dataclass(frozen=True, slots=True)
class ThisNode:
    """What a server knows about itself: the scheme of its store's URL, its number among several processes, when it
    started, and `view`, what the store knows about nodes.
    """

    store: str = "memory"
    worker: int | None = None
    started_at_ms: int = 0
    view: NodeView | None = None
    connections: Callable[[], int] = lambda: 0
    id: str = field(default_factory=lambda: secrets.token_hex(8))


class NodeRoutes:
    """The endpoints `/nodes` and `/activity`."""

    def __init__(self, node: ThisNode, service: LockService, health: HealthRoutes, clock: Clock) -> None:
        self._node: Final = node
        self._service: Final = service
        self._health: Final = health
        self._clock: Final = clock
        self._reports: Final[dict[tuple[str | None, int | None], tuple[int, bytes]]] = {}

    async def nodes(self, _request: Request) -> Response:
        """This node first, then the others that the store knows."""
        view = self._node.view
        others = [] if view is None else view.other_nodes()
        return json_response({"items": [await self._this(), *map(_other, others)]})

    async def activity(self, request: Request) -> Response:
        """The last hour of this server. A service key sees its own project; an admin token all, or one `project_id`."""
        actor = request.scope["volcano.actor"]
        asked = request.query_params.get("project_id")
        project_id = None if asked is None else known_id(asked, "project")
        own_limit = None
        if isinstance(actor, Principal):
            project_id, own_limit = actor.project_id, actor.requests_per_minute
        now_ms = self._clock.now_ms()
        made_at_ms, body = self._reports.get((project_id, own_limit), (0, b""))
        if not 0 <= now_ms - made_at_ms < REPORT_KEPT_MS:
            if len(self._reports) >= REPORTS_MAX:
                self._reports.clear()
            body = self._report(project_id, own_limit, now_ms)
            self._reports[project_id, own_limit] = now_ms, body
        return Response(body, media_type="application/json")

    def _report(self, project_id: str | None, own_limit: int | None, now_ms: int) -> bytes:
        report = self._service.activity.report(project_id, now_ms)
        body = {
            "project_id": project_id,
            "at": instant(now_ms),
            "requests_per_minute": report.requests_per_minute if own_limit is None else own_limit,
            "minutes": [_minute(minute, commits) for minute, commits in report.minutes],
            "hour": {
                "wait_ms": times_ms(minute.waits for minute, _ in report.minutes),
                "commit_ms": times_ms(commits for _, commits in report.minutes if commits is not None),
            },
            "most_contended": [{"key": str(key), "count": count} for key, count in report.contended],
        }
        return msgspec.json.encode(body)

    async def _this(self) -> dict[str, object]:
        node, service, now_ms = self._node, self._service, self._clock.now_ms()
        view = node.view
        return {
            "id": node.id if view is None else view.node_id,
            "is_this": True,
            "is_live": True,
            "version": _version(),
            "store": node.store,
            "worker": node.worker,
            "started_at": instant(node.started_at_ms),
            "seen_at": instant(now_ms),
            "health": await self._health.summary(),
            "clock_difference_ms": None if view is None else view.clock_difference_ms(),
            "waiters": service.queues.table.request_count,
            "streams": service.hub.subscriber_count,
            "connections": node.connections(),
        }


def _other(node: OtherNode) -> dict[str, object]:
    unknown = ("version", "store", "worker", "started_at", "health", "clock_difference_ms", "waiters", "streams")
    known = {"id": node.id, "is_this": False, "is_live": node.is_live, "seen_at": instant(node.written_at_ms)}
    return {**known, **dict.fromkeys((*unknown, "connections"))}


def _minute(minute: Minute, commits: Times | None) -> dict[str, object]:
    counts = {name: minute.counts.get(name, 0) for name in COUNTS}
    losses = {name: counts.pop(name) for name in LOSSES}
    return {
        "at": instant((minute.ends_at - 60) * 1_000),
        **counts,
        "losses": losses,
        "wait_ms": times_ms((minute.waits,)),
        "commit_ms": None if commits is None else times_ms((commits,)),
    }


@cache
def _version() -> str | None:
    try:
        return version("volcano-locks-server")
    except PackageNotFoundError:  # a source tree
        return None
