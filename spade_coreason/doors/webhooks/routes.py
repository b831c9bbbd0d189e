"""The routes of webhooks: `POST /webhooks/{name}` with a signature, and `GET /webhooks/answers/{token}`. They need no key."""

from __future__ import annotations

import asyncio
import hmac
import logging
from http import HTTPStatus
from uuid import UUID, uuid5

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...contracts import ErrorCode
from ...exceptions import StoreError
from ..agents import DoorAgent, DoorAgents
from ..authentication import WrongSecrets
from ..channel import DoorReply
from ..errors import HttpError
from ..limits import check_payload
from ..server import DoorRoutes
from .answers import AnswerAddress, make_token, read_token
from .events import WebhookEvent, read_event
from .replies import read_answer
from .ring import LiveWebhook, WebhookRing
from .signatures import TOLERANCE_S, ClockError, SignatureError, find_kind, verify

log = logging.getLogger(__name__)

_DOOR = "webhook"
_NAMESPACE = UUID("6b0a7a52-6f0e-5a36-9d0f-3f6f4d1c9e27")
_RETRY_S = 2.0
_NOT_RUNNING_S = 5.0
_ANSWER_S = 10.0
_STATUSES = {ErrorCode.TIMEOUT: HTTPStatus.SERVICE_UNAVAILABLE}
_WRONG_SIGNATURE = "the signature is missing or wrong; sign the body with the secret of this webhook, if it is not revoked"
_WRONG_CLOCK = (
    f"the time in webhook-timestamp is more than {TOLERANCE_S // 60} minutes from the clock of this server;"
    " give it in seconds since 1970 (UTC)"
)
_NO_ANSWER = "there is no answer at this address, or it is older than seven days"
_OTHER_BODY = "another body was accepted under this webhook-id; give each event an id of its own"
_OLD_BODY = "this body was accepted before, and its answer is not stored any more; it does not start another turn"
_NOT_LISTED = "the agent of this webhook is not behind webhooks; its operator has to add `webhook` to its doors"
_FULL = "the webhook cannot remember more bodies; its operator has to rotate the secret"


def make_webhook_routes(agents: DoorAgents, ring: WebhookRing, url: str) -> DoorRoutes:
    """Return the routes of webhooks. `url` is the public address of the server."""
    door = _WebhookDoor(agents, ring, url)
    return DoorRoutes(
        open_routes=(
            Route("/webhooks/{name}", door.receive, methods=["POST"]),
            Route("/webhooks/answers/{token}", door.tell_answer),
        )
    )


class _WebhookDoor:
    def __init__(self, agents: DoorAgents, ring: WebhookRing, url: str) -> None:
        self._agents = agents
        self._ring = ring
        self._url = url.rstrip("/")
        self._wrong = WrongSecrets("signature")

    async def receive(self, request: Request) -> Response:
        """Accept a signed event, and answer once it is stored."""
        named = self._ring.live.get(request.path_params["name"])
        # Only the body of one who may know a secret is read. Others get the answer to a wrong signature.
        is_known = named is not None and named.kind == find_kind(request.headers)
        body = await request.body() if is_known else b""
        live, number = self._verify(request, body)
        event = read_event(live.stored.name, live.kind, request.headers, body, request.state.limits)
        check_payload({"": event.payload["query"]})
        if live.kind == "standard":
            request_id = uuid5(_NAMESPACE, f"{live.stored.name}\0{request.headers['webhook-id']}")
            await self._ask(live, request_id, event)
        elif event.is_ping:
            return JSONResponse({"status": "pong"})
        else:
            request_id = await self._ask_once(live, number, event, body)
        token = make_token(live.stored.answer_key, AnswerAddress(live.stored.id, request_id))
        answer = f"{self._url}/webhooks/answers/{token}"
        return JSONResponse(
            {"request_id": str(request_id), "answer": answer}, HTTPStatus.ACCEPTED, headers={"Location": answer}
        )

    async def tell_answer(self, request: Request) -> Response:
        """Answer with the answer to an event, or that there is none yet."""
        address = read_token(request.path_params["token"], self._find_answer_key)
        live = None if address is None else self._ring.find_by_row(address.webhook)
        if address is None or live is None:
            raise self._refuse(request, HttpError(404, _NO_ANSWER))
        try:
            agent = self._find_agent(live)
            state = await agent.requests.find_state(live.caller, address.request_id)
            if state is None:
                raise HttpError(404, _NO_ANSWER)
            body = {"request_id": str(address.request_id), "state": state}
            if state in ("running", "waiting"):
                return JSONResponse(body, HTTPStatus.ACCEPTED, headers={"Retry-After": str(int(_RETRY_S))})
            if state == "closed":
                return JSONResponse(body | {"state": "cancelled"})
            reply = await agent.backend.fetch(live.caller, address.request_id)
        except ConnectionError as error:
            raise _not_running() from error
        if reply is None:
            raise HttpError(404, _NO_ANSWER)
        try:
            async with asyncio.timeout(_ANSWER_S):
                found = await read_answer(reply)
        except TimeoutError:
            found = None
        finally:
            reply.close()
        if found is None:
            return JSONResponse(body | {"state": "running"}, HTTPStatus.ACCEPTED, headers={"Retry-After": str(int(_RETRY_S))})
        return JSONResponse(body | found)

    def _verify(self, request: Request, body: bytes) -> tuple[LiveWebhook, int]:
        """Return the webhook of a request, and the number of the secret that signs it. Raise HttpError.

        An unknown name gets the same answer as a wrong signature.
        """
        now, kind = self._ring.clock(), find_kind(request.headers)
        live = self._ring.live.get(request.path_params["name"])
        keys = live.keys(now) if live is not None and live.kind == kind else (None, None)
        try:
            found = verify(kind, request.headers, body, keys, now)
        except ClockError as error:
            raise self._refuse(request, HttpError(401, _WRONG_CLOCK)) from error
        except SignatureError as error:
            raise self._refuse(request, HttpError(401, _WRONG_SIGNATURE)) from error
        assert live is not None
        return live, live.stored.secret_number - found

    def _refuse(self, request: Request, error: HttpError) -> HttpError:
        """Count a wrong request of an address. Return the answer: the error, or that there were too many."""
        wait_s = self._wrong.count(request.client.host if request.client else "unknown")
        if wait_s is None:
            return error
        return HttpError(429, "too many wrong requests from your address; try again later", retry_after_s=wait_s)

    async def _ask_once(self, live: LiveWebhook, secret_number: int, event: WebhookEvent, body: bytes) -> UUID:
        """Ask with an event that only its body identifies, unless it was asked with it before. Return the id of the request."""
        mark = hmac.digest(live.stored.answer_key, body, "sha256")
        request_id = uuid5(_NAMESPACE, f"{live.stored.name}\0{mark.hex()}")
        repository = self._ring.repository
        self._require_open(live)
        async with live.lock:
            try:
                # It is remembered first: after a crash between the two, the same request id finds what was stored.
                known = await repository.remember(live.stored, secret_number, mark, self._ring.clock())
                if known == "old":
                    raise HttpError(HTTPStatus.CONFLICT, _OLD_BODY)
                if known == "full":
                    if secret_number == live.stored.secret_number:
                        self._ring.report_full(live)
                    raise HttpError(HTTPStatus.INSUFFICIENT_STORAGE, _FULL)
                try:
                    await self._ask(live, request_id, event)
                except _RefusedError:
                    if known == "new":
                        await repository.forget(live.stored, secret_number, mark)
                    raise
            except StoreError as error:
                raise _not_stored() from error
        return request_id

    async def _ask(self, live: LiveWebhook, request_id: UUID, event: WebhookEvent) -> None:
        """Ask the agent, and wait until the request is stored. Raise HttpError if it is not."""
        try:
            agent = self._find_agent(live)
            reply = await agent.ask(
                live.caller, event.payload, request_id=request_id, thread=live.stored.thread, metadata=event.metadata
            )
        except ConnectionError as error:
            raise _not_running() from error
        try:
            if reply.stored is None:
                raise await _find_refusal(reply)
            try:
                await reply.stored
                if not await self._find_agent(live).is_same(live.caller, request_id, event.payload):
                    raise HttpError(HTTPStatus.CONFLICT, _OTHER_BODY)
            except (StoreError, ConnectionError) as error:
                raise _not_stored() from error
        finally:
            reply.close()

    def _find_agent(self, live: LiveWebhook) -> DoorAgent:
        """Return the agent of a webhook. Raise HttpError if it is not behind this door."""
        for agent in self._agents.list_agents(_DOOR, live.caller):
            return agent
        log.warning("the webhook %s is closed: %s does not list `webhook` among its doors", live.stored.name, live.stored.agent)
        raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_LISTED, retry_after_s=_NOT_RUNNING_S)

    def _require_open(self, live: LiveWebhook) -> None:
        if not self._find_agent(live).backend.is_open:
            raise _not_running()

    def _find_answer_key(self, row: int) -> bytes | None:
        live = self._ring.find_by_row(row)
        return None if live is None else live.stored.answer_key


class _RefusedError(HttpError):
    """The agent refuses a request, and nothing of it is stored."""


async def _find_refusal(reply: DoorReply) -> _RefusedError:
    """Return the answer to a request that was not stored."""
    async for event in reply:
        code = ErrorCode(event.data.get("code", ErrorCode.UNAVAILABLE))
        message = event.data.get("message", "the request is refused")
        return _RefusedError(_STATUSES.get(code, HTTPStatus(code)), message, retry_after_s=event.data.get("retry_after_s"))
    return _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "the request is refused", retry_after_s=_NOT_RUNNING_S)


def _not_running() -> HttpError:
    text = "the agent does not run at the moment; send the event again"
    return HttpError(HTTPStatus.SERVICE_UNAVAILABLE, text, retry_after_s=_NOT_RUNNING_S)


def _not_stored() -> HttpError:
    text = "the event cannot be stored at the moment; send it again"
    return HttpError(HTTPStatus.SERVICE_UNAVAILABLE, text, retry_after_s=_NOT_RUNNING_S)
