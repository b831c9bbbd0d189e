"""Pictures and files in requests: stored for seven days, behind links that agents fetch."""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta
from typing import Any

import openai
import pytest

from spade_coreason import AgentRequest, Files, Response, Session
from spade_coreason.contracts.times import utc_now
from spade_coreason.exceptions import FileError
from spade_coreason.memory.erasure import erase_person
from spade_coreason.storage.inbox import Inbox
from tests.support.door_agents import Desk
from tests.support.doors import KEY, OTHER_KEY
from tests.support.openai_door import MODEL, OpenAIDoor, serve_agent

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(100)
PICTURE_URL = f"data:image/png;base64,{b64encode(PICTURE).decode()}"


async def send(door: OpenAIDoor, *parts: Any, key: str = KEY, **options: Any) -> str:
    messages: Any = [{"role": "user", "content": list(parts)}]
    completion: Any = await door.client(key).chat.completions.create(model=MODEL, messages=messages, **options)
    return str(completion.choices[0].message.content)


def picture(link: str = PICTURE_URL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": link}}


TEXT = {"type": "text", "text": "what is this?"}


async def test_a_picture_is_an_attachment_that_the_agent_fetches(url: str) -> None:
    class Reader(Desk):
        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            await super().assist(request, session, response)
            [attachment] = request.payload["attachments"]
            self.fetched = await own.fetch(attachment["url"], types=("image/*",))

    reader = Reader()
    async with serve_agent(url, reader) as door:
        own = Files(_refuse_upload, own_urls=[f"{door.url}/files/"])
        assert await send(door, TEXT, picture()) == "done: what is this?"
        assert (reader.fetched.data, reader.fetched.type, reader.fetched.name) == (PICTURE, "image/png", "image.png")
        [attachment] = reader.requests[0].payload["attachments"]
        assert attachment["size"] == len(PICTURE)
        with pytest.raises(FileError):
            await Files(_refuse_upload).fetch(attachment["url"])


async def _refuse_upload(*_: object) -> str:
    raise AssertionError("nothing is uploaded")


async def test_files_of_both_kinds_of_requests_are_attachments(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, door.http(None) as http:
        data = b64encode(b"a,b\n1,2\n").decode()
        await send(door, TEXT, {"type": "file", "file": {"filename": "../x.csv", "file_data": f"data:text/csv;base64,{data}"}})
        content: Any = [
            {"type": "input_file", "filename": "x.csv", "file_data": data},
            {"type": "input_image", "image_url": PICTURE_URL, "detail": "auto"},
            {"type": "input_file", "file_url": "https://example.org/long.pdf"},
        ]
        await door.client().responses.create(model=MODEL, input=[{"role": "user", "content": content}])
        for request in desk.requests:
            file = next(each for each in request.payload["attachments"] if each["name"] == "x.csv")
            assert (await http.get(file["url"])).content == b"a,b\n1,2\n"
        attachments = desk.requests[1].payload["attachments"]
        assert (attachments[0]["url"], attachments[0]["name"]) == ("https://example.org/long.pdf", "long.pdf")
        assert desk.requests[1].payload["query"].splitlines() == [each["url"] for each in attachments]


async def test_a_link_is_unguessable_and_nothing_in_it_runs(url: str) -> None:
    desk = Desk()
    page = f"data:text/html;base64,{b64encode(b'<script>alert(1)</script>').decode()}"
    drawing = f"data:image/svg+xml;base64,{b64encode(b'<svg/>').decode()}"
    async with serve_agent(url, desk) as door, door.http(None) as http:
        await send(door, picture(), picture(page), picture(drawing))
        links = [each["url"] for each in desk.requests[0].payload["attachments"]]
        for link in links:
            reply = await http.get(link)
            assert reply.headers["content-disposition"].startswith("attachment")
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert "sandbox" in reply.headers["content-security-policy"]
            assert "html" not in reply.headers["content-type"]
            assert "svg" not in reply.headers["content-type"]
            token = link.split("/")[-2]
            assert len(token) == 43
            for wrong in (token[:-1], token.swapcase(), "%2e%2e", "a" * 43):
                assert (await http.get(link.replace(token, wrong))).status_code == 404
        assert len(set(links)) == 3


async def test_the_same_request_has_the_same_links_and_another_has_others(url: str) -> None:
    desk = Desk()
    options: Any = {"extra_headers": {"Idempotency-Key": "k"}}
    async with serve_agent(url, desk) as door:
        assert await send(door, TEXT, picture(), **options) == "done: what is this?"
        assert await send(door, TEXT, picture(), **options) == "done: what is this?"
        await send(door, TEXT, picture())
        await send(door, TEXT, picture(), key=OTHER_KEY, **options)
        links = [request.payload["attachments"][0]["url"] for request in desk.requests]
        assert len(links) == len(set(links)) == 3
        with pytest.raises(openai.UnprocessableEntityError):
            await send(door, TEXT, **options)


@pytest.mark.parametrize(
    ("link", "status"),
    [
        ("data:image/png;base64,%%%", 400),
        ("data:nothing", 400),
        ("data:image/png;base64,", 400),
        ("file:///etc/passwd", 400),
        ("ftp://example.org/x", 400),
        (f"https://example.org/{'x' * 2048}", 400),
        (f"data:image/png;base64,{b64encode(bytes(8 * 2**20 + 1)).decode()}", 413),
    ],
)
async def test_a_file_that_is_wrong_or_too_large_is_refused(url: str, link: str, status: int) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        with pytest.raises(openai.APIStatusError) as refused:
            await send(door, TEXT, picture(link))
        assert refused.value.status_code == status
        with pytest.raises(openai.APIStatusError):
            await send(door, *[picture()] * 21)
    assert desk.seen == []


async def test_files_are_deleted_with_their_owner_with_their_conversation_and_after_seven_days(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, door.http(None) as http:
        named: Any = {"extra_headers": {"X-Conversation-Id": "c"}}
        await send(door, picture())
        await send(door, picture(), **named)
        await send(door, picture(), key=OTHER_KEY)
        await send(door, picture(), key=OTHER_KEY)
        links = [request.payload["attachments"][0]["url"] for request in desk.requests]

        async def find_left() -> list[int]:
            return [number for number, link in enumerate(links) if (await http.get(link)).status_code == 200]

        assert await find_left() == [0, 1, 2, 3]
        repository = door.running.runtime.runner.repository
        records = await repository.list_conversations("website@callers.invalid")
        [record] = [each for each in records if each.conversation_id == "openai-c"]
        await repository.delete_conversation(record)
        assert await find_left() == [0, 2, 3]
        await erase_person(repository, None, "website@callers.invalid")
        assert await find_left() == [2, 3]
        inbox = Inbox(repository.database, repository.agent)
        await inbox.purge(utc_now())  # the first one
        await inbox.purge(utc_now() + timedelta(days=6, hours=23))
        assert await find_left() == [2, 3]
        await inbox.purge(utc_now() + timedelta(days=7, seconds=1))
        assert await find_left() == []
        assert await repository.callers.load_files_of("shop@callers.invalid") == []


async def test_a_refused_request_leaves_no_file(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        access = door.running.runtime.gateway.access_requests.access
        callers, access.callers = access.callers, {}
        with pytest.raises(openai.PermissionDeniedError):
            await send(door, picture())
        repository = door.running.runtime.runner.repository.callers
        assert await repository.load_files_of("website@callers.invalid") == []
        access.callers = callers
        assert await send(door, TEXT, picture()) == "done: what is this?"
