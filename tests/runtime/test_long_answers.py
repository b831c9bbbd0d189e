"""An answer too long for a chat is a file with a summary; a link to what an agent has uploaded is shown as the file."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Files, ResponseHandler, SessionHandle
from spade_coreason.exceptions import UploadError
from spade_coreason.testing import LocalFiles, PlatformLimits, Policy, ReceivedMessage
from spade_coreason.xmpp.codec.xml import preview
from tests.runtime.test_runner_outbox import StanzaRecorder, person_question, run_runner

FIRST = "It is about *tea* & **coffee**."
LONG = "\n\n".join([f"# Drinks\n\n{FIRST}", *(f"Paragraph {n} of many." for n in range(100))])
FILE_POLICY = Policy(limits=PlatformLimits(file_over_bytes=1000))


class LongReplyAgent:
    """Reply in the way that the query names, or upload a file first and reply with its link."""

    def __init__(self, files: Files, content: Any = LONG) -> None:
        self.manifest = AgentDefinition.simple("speaker")
        self.files = files
        self.content = content
        self.turns: list[Any] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.turns = [turn.output["text"] for turn in await session.history()]
        content = self.content
        if request.payload["query"] in ("a link", "a link in data", "a link in a text"):
            content = await self.files.upload("tea_and_co*ffee.png", b"x")
        match request.payload["query"]:
            case "a block" | "a link":
                await response.markdown(content)
            case "a stream" | "an open stream":
                stream = await response.create_stream()
                for word in content.split(" "):
                    await stream.write(f"{word} ")
                if request.payload["query"] == "a stream":
                    await stream.close()
                    await stream.close()
            case "data":
                await response.data({"text": content})
            case "a link in data":
                await response.data({"found": [{"at": content, "other": "https://example.org/a.png"}], "again": content})
            case "a link in a text":
                await response.markdown(f"Here: {content}")
            case text:
                await response.markdown(text)


async def messages_after(t: AgentTester, query: str) -> list[ReceivedMessage]:
    before = len(t.messages())
    t.send(query)
    await t.settled()
    t.unread()
    return [message for message in t.messages()[before:] if message.text is not None]


@pytest.mark.parametrize("way", ["a block", "a stream", "an open stream"])
async def test_a_reply_too_long_for_a_chat_is_its_beginning_and_a_file(way: str) -> None:
    async with AgentTester(LongReplyAgent, policy=FILE_POLICY) as t:
        beginning, file = await messages_after(t, way)
        assert (beginning.text or "").startswith("*Drinks*\n\nIt is about _tea_ & *coffee*.\n\nParagraph 0")
        assert (beginning.text or "").endswith("…\n\nThe whole answer (2 kB) is in this file:")
        assert beginning.link is None
        [(link, uploaded_file)] = t.uploaded.items()
        assert file.text == file.link == link
        assert (uploaded_file.name, uploaded_file.type, uploaded_file.data.decode().strip()) == (
            "answer.md",
            "text/markdown",
            LONG,
        )
        await t.say("again")
        assert t.agent.turns[0].strip() == LONG  # type: ignore[attr-defined]  # of this test's own agent


async def test_long_data_are_a_file_in_the_form_that_people_read() -> None:
    async with AgentTester(LongReplyAgent, policy=FILE_POLICY) as t:
        beginning, file = await messages_after(t, "data")
        assert (beginning.text or "").startswith('```\n{\n  "text"')
        assert (beginning.text or "").count("```") == 2
        [(link, uploaded_file)] = t.uploaded.items()
        assert file.text == link
        assert (uploaded_file.name, uploaded_file.data[:3]) == ("answer.txt", b"```")


async def test_a_live_stream_ends_as_the_beginning_of_the_file() -> None:
    async with AgentTester(LongReplyAgent, policy=FILE_POLICY, client_features={"corrections"}) as t:
        *grown, beginning, file = await messages_after(t, "a stream")
        assert "The whole answer" in (beginning.text or "")
        assert file.text == file.link
        replaced = {message.corrects is None for message in grown[1:]}
        assert replaced <= {False}


async def test_a_program_gets_the_whole_reply_and_no_file() -> None:
    async with AgentTester(LongReplyAgent, policy=FILE_POLICY) as t:
        assert (await t.ask("a block")).text == LONG
        assert t.uploaded == {}


@pytest.mark.parametrize("over", [0, 10**6])
async def test_a_reply_under_the_limit_or_without_a_limit_is_no_file(over: int) -> None:
    async with AgentTester(LongReplyAgent, policy=Policy(limits=PlatformLimits(file_over_bytes=over))) as t:
        [whole] = await messages_after(t, "a block")
        assert (whole.text or "").endswith("Paragraph 99 of many.")
        assert t.uploaded == {}


async def test_without_a_file_service_a_long_reply_is_several_messages() -> None:
    asked = []

    async def refuses(name: str, *rest: Any) -> str:
        asked.append(name)
        raise UploadError(name, "there is no such service")

    policy = Policy(limits=PlatformLimits(file_over_bytes=1000, stanza_bytes=10_000))
    async with AgentTester(LongReplyAgent, policy=policy, options={"content": LONG * 10}, upload=refuses) as t:
        for _ in range(2):
            parts = await messages_after(t, "a block")
            assert len(parts) > 2
            assert (parts[-1].text or "").endswith("Paragraph 99 of many.")
        assert asked == ["answer.md"]


async def test_a_file_service_that_fails_is_one_warning_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    is_broken, attempts = True, 0

    async def upload(name: str, *rest: Any) -> str:
        nonlocal attempts
        attempts += 1
        if is_broken:
            raise UploadError(name, "https://files.localhost: the connection fails", "see to the server")
        return f"https://files.localhost/{attempts}"

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    warning = (
        "files cannot be uploaded, so long answers are sent in several messages: "
        "https://files.localhost: the connection fails; see to the server"
    )
    async with AgentTester(LongReplyAgent, policy=FILE_POLICY, upload=upload) as t:
        assert (await messages_after(t, "a block"))[-1].link is None
        assert warnings() == [warning]
        files = t.agent.files  # type: ignore[attr-defined]  # of this test's own agent
        for _ in range(2):
            with pytest.raises(UploadError):
                await files.upload("a.txt", b"x")
        assert warnings() == [warning]
        is_broken = False
        for _ in range(2):
            await files.upload("a.txt", b"x")
        assert warnings() == [warning, "files can be uploaded again"]
        is_broken = True
        with pytest.raises(UploadError):
            await files.upload("a.txt", b"x")
        assert warnings() == [warning, "files can be uploaded again", warning]


async def test_a_long_answer_sent_again_after_a_restart_is_the_same_and_is_not_uploaded_again(database_url: str) -> None:
    files = LocalFiles()
    first, second = StanzaRecorder(), StanzaRecorder()
    for recorder in (first, second):
        async with run_runner(
            LongReplyAgent(Files(files.upload)), recorder, database_url, policy=FILE_POLICY, upload=files.upload
        ) as runner:
            if recorder is first:
                runner.intake.receive(person_question("a block"))
            await runner.mailboxes.wait_until_idle()
    assert [message.content for message in second.sent] == [message.content for message in first.sent]
    [link] = files.files
    assert first.bodies[-1] == link


async def test_a_turn_interrupted_after_its_upload_uploads_again(database_url: str) -> None:
    files = LocalFiles()
    uploaded = asyncio.Event()

    async def put(name: str, data: bytes, *rest: Any) -> str:
        link = await files.upload(name, data, *rest)
        uploaded.set()
        if len(files.files) == 1:
            await asyncio.Event().wait()
        return link

    first, second = StanzaRecorder(), StanzaRecorder()
    async with run_runner(LongReplyAgent(Files(put)), first, database_url, policy=FILE_POLICY, upload=put) as runner:
        runner.intake.receive(person_question("a block"))
        await uploaded.wait()
    assert first.sent == []
    async with run_runner(LongReplyAgent(Files(put)), second, database_url, policy=FILE_POLICY, upload=put) as runner:
        await runner.mailboxes.wait_until_idle()
    _, again = files.files
    assert second.bodies[-1] == again


# Links


async def test_a_link_to_an_upload_is_a_message_that_clients_show_as_the_file() -> None:
    async with AgentTester(LongReplyAgent) as t:
        [alone] = await messages_after(t, "a link")
        [link] = t.uploaded
        assert alone.text == alone.link == link
        table, found = await messages_after(t, "a link in data")
        _, second = t.uploaded
        assert second in (table.text or "")
        assert table.link is None
        assert found.text == found.link == second
        [words] = await messages_after(t, "a link in a text")
        assert words.link is None


async def test_a_foreign_link_is_never_shown_as_a_file() -> None:
    """A client fetches each picture that it shows, so a link of a stranger would reveal who reads the reply."""
    async with AgentTester(LongReplyAgent) as t:
        await messages_after(t, "a link")
        for link in ("https://evil.example/a.png", "https://files.localhost/2/answer.md"):
            [message] = await messages_after(t, link)
            assert message.text == link
            assert message.link is None


# The summary


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "```\n" + "code\n" * 1000 + "```", "# a\n\n" + "b " * 3000])
def test_a_summary_is_short_and_leaves_no_block_open(text: str) -> None:
    short = preview(text)
    assert len(short) < 1100
    assert short.count("```") % 2 == 0
    assert not short or short.endswith("\n…")
