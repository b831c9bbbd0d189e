"""Nothing of one caller reaches another: two keys, two people below a key, and ids that they know of each other."""

from __future__ import annotations

from itertools import permutations
from typing import Any
from uuid import uuid4

import httpx

from spade_coreason.doors.openai.conversations import derive_request_id
from tests.support.door_agents import CALLERS, Desk
from tests.support.doors import FRONT_END_KEY, KEY, OTHER_KEY
from tests.support.openai_door import MODEL, serve_agent
from tests.support.records import AGENT

WHO = {
    "website": {"Authorization": f"Bearer {KEY}"},
    "shop": {"Authorization": f"Bearer {OTHER_KEY}"},
    "ada": {"Authorization": f"Bearer {FRONT_END_KEY}", "X-Forwarded-User": "ada@example.org"},
    "ben": {"Authorization": f"Bearer {FRONT_END_KEY}", "X-Forwarded-User": "ben@example.org"},
}


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_ids_of_another_caller_open_nothing(url: str) -> None:
    desk, tries = Desk(), 0
    async with serve_agent(url, desk) as door, httpx.AsyncClient(base_url=f"{door.url}/v1", timeout=30) as http:

        async def post(who: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
            return await http.post(path, json={"model": MODEL, **body}, headers={**WHO[who], **headers})

        made: dict[str, str] = {}
        for who in WHO:
            named = {"X-Conversation-Id": "shared", "Idempotency-Key": "shared"}
            reply = await post(who, "/responses", {"input": f"secret of {who}"}, **named)
            made[who] = reply.json()["id"]
            assert (await post(who, "/responses", {"input": "ask me"}, **{"X-Conversation-Id": "asked"})).status_code == 200
        assert len(set(made.values())) == len(set(desk.sessions)) / 2 == len(WHO)
        asked_by = list(zip([owner for owner, _ in desk.seen], desk.sessions, strict=True))
        own_sessions = {who: {session for owner, session in asked_by if owner == _address(who)} for who in WHO}
        for owner, other in permutations(WHO, 2):
            response = made[owner]
            for wrong in (response, response.replace("resp_", "chatcmpl-"), f"resp_{uuid4().hex}"):
                refused = [
                    await http.get(f"/responses/{wrong}", headers=WHO[other]),
                    await http.get(f"/responses/{wrong}?stream=true", headers=WHO[other]),
                    await http.delete(f"/responses/{wrong}", headers=WHO[other]),
                    await http.post(f"/responses/{wrong}/cancel", headers=WHO[other]),
                    await post(other, "/responses", {"input": "more", "previous_response_id": wrong}),
                ]
                assert [reply.status_code for reply in refused] == [404, 404, 404, 404, 400]
                assert not any(f"secret of {owner}" in reply.text for reply in refused)
                tries += len(refused)
            history = [
                *said(f"secret of {owner}"),
                {"role": "assistant", "content": f"done: secret of {owner}"},
                *said("go on"),
            ]
            for headers in ({"X-Conversation-Id": "shared"}, {"X-OpenWebUI-Chat-Id": "openai-shared"}):
                await post(other, "/chat/completions", {"messages": history}, **headers)
                assert desk.seen[-1][0] == _address(other)
                assert desk.sessions[-1] not in own_sessions[owner]
                tries += 1
            reply = await post(other, "/chat/completions", {"messages": history})
            assert desk.sessions[-1] not in own_sessions[owner]
            tries += 1
        for who in WHO:  # each answers its own question only
            reply = await post(who, "/chat/completions", {"messages": said("red")}, **{"X-Conversation-Id": "asked"})
            assert reply.json()["choices"][0]["message"]["content"] == "painted red"
            fetched = await http.get(f"/responses/{made[who]}", headers=WHO[who])
            assert fetched.json()["output"][0]["content"][0]["text"] == f"done: secret of {who}"
    assert tries >= 50


def _address(who: str) -> str:
    caller = {"website": CALLERS[KEY], "shop": CALLERS[OTHER_KEY]}.get(who)
    return caller.address if caller is not None else CALLERS[FRONT_END_KEY].for_user(f"{who}@example.org").address


def test_the_same_key_of_two_callers_or_for_two_agents_is_another_request() -> None:
    ids = {derive_request_id(caller, agent, "k") for caller in CALLERS.values() for agent in (AGENT, "other@localhost")}
    assert len(ids) == 2 * len(CALLERS)
