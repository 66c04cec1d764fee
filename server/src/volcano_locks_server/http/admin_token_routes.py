"""The admin API for named admin tokens (ADMIN-11, ADMIN-12).

A token is generated here, returned once, and stored only as its digest. A revocation empties this node's credential
caches, so that it takes effect with the next request.
"""

import uuid
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..ports.admin_tokens import AdminToken, AdminTokens
from ..ports.clock import Clock
from ..rules.values import parse_name
from ..telemetry import Log
from .acts import act_of
from .admin_routes import entry_of, known_id, page_position, page_response
from .audit_log import made_by
from .auth import ADMIN_PREFIX_LENGTH, Authenticator, new_admin_secret, secret_digest
from .codec import json_object, read_body
from .responses import json_response
from .store_deadline import store_deadline


class AdminTokenRoutes:
    """The endpoints under `/admin-tokens`. Each may raise LockError."""

    def __init__(self, tokens: AdminTokens, authenticator: Authenticator, clock: Clock, log: Log) -> None:
        self._tokens: Final = tokens
        self._authenticator: Final = authenticator
        self._clock: Final = clock
        self._log: Final = log

    async def create(self, request: Request) -> Response:
        fields = json_object(await read_body(request.receive), ("name",))
        token, secret = new_admin_token(parse_name(fields.get("name")), self._clock.now_ms())
        async with store_deadline():
            await self._tokens.add(token, secret_digest(secret), by=act_of(request.scope, token.created_at_ms))
        self._log.info("admin_token_created", **made_by(request.scope), token_id=token.id, name=token.name)
        return json_response(entry_of(token) | {"token_value": secret}, 201)

    async def page(self, request: Request) -> Response:
        limit, cursor = page_position(request)
        async with store_deadline():
            return page_response(await self._tokens.page(limit=limit, cursor=cursor), request, self._log)

    async def delete(self, request: Request) -> Response:
        token_id = known_id(request.path_params["token_id"], "admin token")
        try:
            async with store_deadline():
                token = await self._tokens.delete(token_id, by=act_of(request.scope, self._clock.now_ms()))
        finally:
            self._authenticator.invalidate()  # also after an error: it may be deleted
        self._log.info("admin_token_revoked", **made_by(request.scope), token_id=token.id, name=token.name)
        return Response(status_code=204)


def new_admin_token(name: str, now_ms: int) -> tuple[AdminToken, str]:
    """A new admin token, and its secret, which is stored nowhere."""
    secret = new_admin_secret()
    return AdminToken(str(uuid.uuid4()), name, secret[:ADMIN_PREFIX_LENGTH], now_ms), secret
