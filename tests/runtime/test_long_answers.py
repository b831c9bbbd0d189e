"""An answer too long for a chat is a file with a summary; a link to what an agent has uploaded is shown as the file."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    Files,
    Policy,
    ResponseHandler,
    SessionHandle,
    UploadError,
)
from spade_coreason.codec.xml import preview
from spade_coreason.testing import LocalFiles, ReceivedMessage
from tests.runtime.test_runner_outbox import Wire, question, running

FIRST = "It is about *tea* & **coffee**."
LONG = "\n\n".join([f"# Drinks\n\n{FIRST}", *(f"Paragraph {n} of many." for n in range(100))])
SMALL = Policy(file_over_bytes=1000)


class Speaker:
    """Says something in one of the ways there are, or keeps a file first and says its link."""

    def __init__(self, files: Files, what: Any = LONG) -> None:
        self.manifest = AgentDefinition.simple("speaker")
        self.files = files
        self.what = what
        self.turns: list[Any] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.turns = [turn.output["text"] for turn in await session.history()]
        what = self.what
        if request.payload["query"] in ("a link", "a link in data", "a link in a text"):
            what = await self.files.upload("tea_and_co*ffee.png", b"x")
        match request.payload["query"]:
            case "a block" | "a link":
                await response.markdown(what)
            case "a stream" | "an open stream":
                stream = await response.create_stream()
                for word in what.split(" "):
                    await stream.write(f"{word} ")
                if request.payload["query"] == "a stream":
                    await stream.close()
                    await stream.close()
            case "data":
                await response.data({"text": what})
            case "a link in data":
                await response.data({"found": [{"at": what, "other": "https://example.org/a.png"}], "again": what})
            case "a link in a text":
                await response.markdown(f"Here: {what}")
            case text:
                await response.markdown(text)


async def heard_after(t: AgentTester, query: str) -> list[ReceivedMessage]:
    before = len(t.messages())
    t.send(query)
    await t.settled()
    t.unread()
    return [message for message in t.messages()[before:] if message.text is not None]


@pytest.mark.parametrize("how", ["a block", "a stream", "an open stream"])
async def test_an_answer_too_long_for_a_chat_is_its_beginning_and_a_file(how: str) -> None:
    async with AgentTester(Speaker, policy=SMALL) as t:
        begins, file = await heard_after(t, how)
        assert (begins.text or "").startswith("*Drinks*\n\nIt is about _tea_ & *coffee*.\n\nParagraph 0")
        assert (begins.text or "").endswith("…\n\nThe whole answer (2 kB) is in this file:")
        assert begins.link is None
        [(link, kept)] = t.uploaded.items()
        assert file.text == file.link == link
        assert (kept.name, kept.type, kept.data.decode().strip()) == ("answer.md", "text/markdown", LONG)
        await t.say("again")
        assert t.agent.turns[0].strip() == LONG  # type: ignore[attr-defined]  # of this test's own agent


async def test_long_data_is_a_file_too_as_a_person_reads_it() -> None:
    async with AgentTester(Speaker, policy=SMALL) as t:
        begins, file = await heard_after(t, "data")
        assert (begins.text or "").startswith('```\n{\n  "text"')
        assert (begins.text or "").count("```") == 2
        [(link, kept)] = t.uploaded.items()
        assert file.text == link
        assert (kept.name, kept.data[:3]) == ("answer.txt", b"```")


async def test_a_stream_that_grew_ends_as_the_beginning_of_the_file() -> None:
    async with AgentTester(Speaker, policy=SMALL, client_features={"corrections"}) as t:
        *grown, begins, file = await heard_after(t, "a stream")
        assert "The whole answer" in (begins.text or "")
        assert file.text == file.link
        replaced = {message.corrects is None for message in grown[1:]}
        assert replaced <= {False}


async def test_a_program_gets_all_of_it_and_no_file() -> None:
    async with AgentTester(Speaker, policy=SMALL) as t:
        assert (await t.ask("a block")).text == LONG
        assert t.uploaded == {}


@pytest.mark.parametrize("over", [0, 10**6])
async def test_what_is_not_too_long_or_never_to_be_one_is_no_file(over: int) -> None:
    async with AgentTester(Speaker, policy=Policy(file_over_bytes=over)) as t:
        [whole] = await heard_after(t, "a block")
        assert (whole.text or "").endswith("Paragraph 99 of many.")
        assert t.uploaded == {}


async def test_where_the_server_keeps_no_files_it_goes_in_several_messages_and_is_not_asked_each_time() -> None:
    asked = []

    async def refuses(name: str, *rest: Any) -> str:
        asked.append(name)
        raise UploadError(name, "there is no such service")

    policy = Policy(file_over_bytes=1000, stanza_bytes=10_000)
    async with AgentTester(Speaker, policy=policy, options={"what": LONG * 10}, upload=refuses) as t:
        for _ in range(2):
            parts = await heard_after(t, "a block")
            assert len(parts) > 2
            assert (parts[-1].text or "").endswith("Paragraph 99 of many.")
        assert asked == ["answer.md"]


async def test_a_long_answer_sent_again_after_a_restart_is_the_same_and_is_not_uploaded_again(database_url: str) -> None:
    files = LocalFiles()
    first, second = Wire(), Wire()
    for wire in (first, second):
        async with running(Speaker(Files(files.upload)), wire, database_url, policy=SMALL, files=Files(files.upload)) as runner:
            if wire is first:
                runner.receive(question("a block"))
            await runner.wait_until_idle()
    assert second.sent == first.sent
    [link] = files.files
    assert first.bodies[-1] == link


async def test_a_turn_that_died_behind_its_upload_uploads_again(database_url: str) -> None:
    files = LocalFiles()
    uploaded = asyncio.Event()

    async def put(name: str, data: bytes, *rest: Any) -> str:
        link = await files.upload(name, data, *rest)
        uploaded.set()
        if len(files.files) == 1:
            await asyncio.Event().wait()
        return link

    first, second = Wire(), Wire()
    async with running(Speaker(Files(put)), first, database_url, policy=SMALL, files=Files(put)) as runner:
        runner.receive(question("a block"))
        await uploaded.wait()
    assert first.sent == []
    async with running(Speaker(Files(put)), second, database_url, policy=SMALL, files=Files(put)) as runner:
        await runner.wait_until_idle()
    _, again = files.files
    assert second.bodies[-1] == again


# Links


async def test_a_link_to_what_was_uploaded_is_a_message_of_its_own_that_clients_show_as_the_file() -> None:
    async with AgentTester(Speaker) as t:
        [alone] = await heard_after(t, "a link")
        [link] = t.uploaded
        assert alone.text == alone.link == link
        table, found = await heard_after(t, "a link in data")
        _, second = t.uploaded
        assert second in (table.text or "")
        assert table.link is None
        assert found.text == found.link == second
        [words] = await heard_after(t, "a link in a text")
        assert words.link is None


async def test_a_link_of_somebody_else_is_never_shown_as_a_file() -> None:
    """The client of whoever is shown a picture fetches it: what a stranger makes an agent say must not tell who listens."""
    async with AgentTester(Speaker) as t:
        await heard_after(t, "a link")
        for link in ("https://evil.example/a.png", "https://files.localhost/2/answer.md"):
            [message] = await heard_after(t, link)
            assert message.text == link
            assert message.link is None


# The summary


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "```\n" + "code\n" * 1000 + "```", "# a\n\n" + "b " * 3000])
def test_a_summary_is_short_and_leaves_no_block_open(text: str) -> None:
    short = preview(text)
    assert len(short) < 1100
    assert short.count("```") % 2 == 0
    assert not short or short.endswith("\n…")
