"""Pictures of people, as a model is shown them: from real web servers, to a model with the real API."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from spade_coreason import AgentTester, ConfigError
from spade_coreason.domain.avatar import recognise_picture
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm import LLMAgent, Pictures
from spade_coreason.testing import FakeModel, error, tool_call
from tests.llm.test_agent import run_helper_agent
from tests.support.chat_completions import CompletionStream, error_answer, text_answer
from tests.support.llm_agent import stored_turns
from tests.support.picture_files import GIF, PICTURES
from tests.support.web_server import WebServer, page, redirect

PUBLIC = {"allow_private": ("127.0.0.3/32",)}
"""In these tests this one address is the public internet; every other of the machine stays private."""


def sent_pictures(body: dict[str, Any]) -> list[bytes]:
    """Return the pictures of a request to a model, as on the wire."""
    parts = [part for message in body["messages"] if isinstance(message.get("content"), list) for part in message["content"]]
    links = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert all(link.startswith("data:image/") for link in links)
    return [b64decode(link.partition(";base64,")[2]) for link in links]


def attach(*links: str, query: str | None = "What is it?", **details: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {"attachments": [{"url": link, **details} for link in links]}
    return payload if query is None else {"query": query, **payload}


def steps_of(answer: Any) -> list[str]:
    return [event.data["content"] for event in answer.events if event.type == "block.thought"]


@pytest.mark.parametrize("kind", PICTURES)
async def test_a_picture_goes_with_its_question_as_what_its_first_bytes_say(kind: str) -> None:
    data = PICTURES[kind]
    async with (
        WebServer({"/holiday": page(data, "Content-Type: text/html")}) as web,
        run_helper_agent(text_answer("A dot."), pictures=PUBLIC) as (server, t),
    ):
        answer = await t.ask(attach(web.url("/holiday"), type="image/x-claimed"))
        assert (answer.text, steps_of(answer)) == ("A dot.", [])
    *_, data_message, question = server.requests[0]["messages"]
    assert json.loads(data_message["content"].partition("\n")[2])["attachments"][0]["picture"] == "it follows"
    text, picture = question["content"]
    assert text == {"type": "text", "text": "What is it?"}
    link = f"data:image/{kind};base64,{b64encode(data).decode()}"
    assert picture == {"type": "image_url", "image_url": {"url": link}}


async def test_a_picture_that_comes_before_the_question_is_shown_again_for_some_turns_and_is_not_stored() -> None:
    async with (
        WebServer({"/a.gif": page(GIF)}) as web,
        run_helper_agent(text_answer("Yes."), pictures={**PUBLIC, "turns": 2}) as (server, t),
    ):
        await t.ask(attach(web.url("/a.gif"), query=None))
        for question in ("What is it?", "Is it large?", "And now?"):
            await t.ask(question)
        repository = t.runners[t.jid].repository
        [conversation] = await repository.list_conversations()
        stored = [
            row.decode() if isinstance(row, bytes) else row for row in await repository.turns.load_history(conversation.id, 9)
        ]
    assert [sent_pictures(request) for request in server.requests] == [[GIF], [GIF], [GIF], []]
    assert len(web.requests) == 3
    assert len(stored) == 4
    assert not any(b64encode(GIF).decode() in row or "base64" in row for row in stored)


async def test_pictures_are_bounded_in_number_and_size_and_the_person_and_the_model_learn_which_are_not_shown() -> None:
    large = GIF + bytes(1000)
    pages = {**{f"/{number}.gif": page(GIF) for number in range(3)}, "/large.gif": page(large), "/page.gif": page(b"<html>")}
    async with (
        WebServer(pages) as web,
        run_helper_agent(text_answer("Two."), pictures={**PUBLIC, "number": 5, "max_bytes": 900}) as (server, t),
    ):
        names = ("large.gif", "page.gif", "away.gif", "0.gif", "1.gif", "2.gif")
        answer = await t.ask(attach(*(web.url(f"/{name}") for name in names)))
    assert steps_of(answer) == [
        "My language model does not see the picture: it has more than 900 bytes.",
        "My language model does not see the picture: it is not a PNG, JPEG, WebP or GIF.",
        "My language model does not see the picture: the server answers 404 Not Found.",
        "My language model does not see the picture: there are too many pictures.",
    ]
    assert len(sent_pictures(server.requests[0])) == 2
    noted = json.loads(server.requests[0]["messages"][-2]["content"].partition("\n")[2])["attachments"]
    begin = "you do not see it; say so if it matters: "
    assert [one["picture"].removeprefix(begin) for one in noted] == [
        "it has more than 900 bytes",
        "it is not a PNG, JPEG, WebP or GIF",
        "the server answers 404 Not Found",
        "it follows",
        "it follows",
        "there are too many pictures",
    ]


async def test_pictures_are_bounded_in_their_bytes_together_and_the_newest_are_shown() -> None:
    data = GIF + bytes(1000)
    model = FakeModel(["Yes."] * 3)
    options = {"pictures": {"max_bytes": 2 * len(data) + 1}}
    async with AgentTester(LLMAgent, model=model, options=options) as t:
        links = [t.add_file(f"{number}.gif", data + bytes([number])) for number in range(3)]
        answer = await t.ask(attach(*links))
        await t.ask(attach(links[2]))
        await t.ask("And now?")
    number = f"{2 * len(data) + 1:,}"
    assert (
        steps_of(answer)
        == [f"My language model does not see the picture: with the others it has more than {number} bytes."] * 2
    )
    assert [[picture[-1] for picture in request.pictures] for request in model.requests] == [[0], [2], [2]]


@pytest.mark.parametrize("allow_private", [False, ("127.0.0.3/32",)])
async def test_neither_a_link_nor_a_redirect_leads_to_a_private_address(
    allow_private: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with WebServer({"/secret.gif": page(GIF)}, "127.0.0.1") as inside:
        async with (
            WebServer({"/a.gif": redirect(inside.url("/secret.gif"))}) as web,
            run_helper_agent(text_answer("No."), pictures={"allow_private": allow_private}) as (server, t),
        ):
            for link in (inside.url("/secret.gif"), web.url("/a.gif"), "file:///etc/passwd", "http://127.0.0.1:22/a.gif"):
                answer = await t.ask(attach(link, name="a.gif"))
                [step] = steps_of(answer)
                assert "allow_private" not in step
        assert inside.requests == []
    assert [sent_pictures(request) for request in server.requests] == [[]] * 4
    warnings = [record.message for record in caplog.records if "allow_private" in record.message]
    assert warnings == [
        "helper: a picture cannot be fetched, so the model is not shown it; if your server for uploads has a private address,"
        " name its network in options.pictures.allow_private"
    ]


async def test_other_files_are_not_fetched_and_a_picture_without_a_name_is() -> None:
    pages = {"/notes.txt": page(b"hi"), "/x": page(GIF), "/y": page(b"hi")}
    async with WebServer(pages) as web, run_helper_agent(text_answer("Yes."), pictures=PUBLIC) as (server, t):
        answer = await t.ask(attach(web.url("/notes.txt"), web.url("/x"), web.url("/y")))
        typed = await t.ask(attach(web.url("/x"), type="video/mp4"))
    assert [request.split(" ")[1] for request in web.requests[:2]] == ["/x", "/y"]
    assert (steps_of(answer), steps_of(typed)) == ([], [])
    assert sent_pictures(server.requests[0]) == [GIF]


@pytest.mark.parametrize(
    "attachments", [7, "a.gif", [None, "a.gif"], [{"url": 7}], [{"name": "a.gif"}], {"url": "x"}, [{"url": "http://[x"}]]
)
async def test_a_program_may_send_anything_as_its_attachments(attachments: Any) -> None:
    async with AgentTester(LLMAgent, model=FakeModel(["Yes.", "Yes."]), options={"pictures": True}) as t:
        assert (await t.ask({"query": "Hi", "attachments": attachments})).text == "Yes."
        assert (await t.ask("Hi")).text == "Yes."


@pytest.mark.parametrize(("pictures", "warning_count"), [(None, 1), (False, 0)])
async def test_pictures_are_off_and_the_person_the_model_and_the_operator_learn_it(
    pictures: bool | None, warning_count: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = FakeModel(["I see none."] * 3)
    async with AgentTester(LLMAgent, model=model, options={} if pictures is None else {"pictures": pictures}) as t:
        link = t.add_file("daisy.gif", GIF)
        for _ in range(2):
            answer = await t.ask(attach(link, name="daisy.gif"))
            assert steps_of(answer) == ["My language model does not see daisy.gif: I am not set up to look at pictures."]
        assert steps_of(await t.ask(attach("https://example.org/notes.txt"))) == []
    assert model.requests[0].pictures == []
    assert "you do not see it; say so if it matters" in model.requests[0].messages[-2]["content"]
    warnings = [record for record in caplog.records if "set options.pictures to true" in record.message]
    assert len(warnings) == warning_count


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "unknown variant `image_url`, expected `text`"),
        (422, "no"),
        (413, "too large"),
        (404, "No endpoints found that support image input"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
    ],
)
async def test_a_server_that_refuses_pictures_is_asked_again_without_them(
    status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def choose(wire: CompletionStream) -> Any:
        return (error_answer(status, message) if sent_pictures(wire.body) else text_answer("I cannot see it."))(wire)

    async with WebServer({"/a.gif": page(GIF)}) as web, run_helper_agent(choose, pictures=PUBLIC) as (server, t):
        for _ in range(2):
            answer = await t.ask(attach(web.url("/a.gif")))
            assert answer.text == "I cannot see it."
            assert steps_of(answer) == ["My language model does not see your pictures: its server refuses them."]
    assert len(server.requests) == 4
    question = server.requests[1]["messages"][-1]["content"]
    assert question.startswith("What is it?\n\n(You do not see the pictures")
    warnings = [record.message for record in caplog.records if "refuses a request with pictures" in record.message]
    assert warnings == [
        f"small refuses a request with pictures ({status}), and is asked again without them; if it takes no images, set"
        " options.pictures to false"
    ]


@pytest.mark.parametrize(("status", "message"), [(401, "image"), (404, "no such model"), (429, "image"), (503, "image")])
async def test_other_failures_are_not_put_down_to_the_pictures(status: int, message: str) -> None:
    async with (
        WebServer({"/a.gif": page(GIF)}) as web,
        run_helper_agent(error_answer(status, message), pictures=PUBLIC, endpoint={"tries": 1}) as (server, t),
    ):
        with pytest.raises(PeerFailedError) as caught:
            await t.ask(attach(web.url("/a.gif")))
    assert f"({status})" in str(caught.value)
    assert len(server.requests) == 1


async def test_pictures_stay_in_all_rounds_of_a_turn_and_a_refused_request_is_refused_once() -> None:
    def look() -> str:
        """Look again."""
        return "yes"

    model = FakeModel([tool_call("look"), "A daisy.", error(400), tool_call("look"), "I cannot see it."])
    async with AgentTester(LLMAgent, model=model, options={"pictures": True, "tools": [look]}) as t:
        link = t.add_file("daisy.gif", GIF)
        await t.ask(attach(link), thread="one")
        await t.ask(attach(link), thread="two")
    assert [request.pictures for request in model.requests] == [[GIF], [GIF], [GIF], [], []]
    assert [request.question.split("\n")[0] for request in model.requests] == ["What is it?"] * 5


async def test_a_picture_counts_its_own_tokens_and_not_those_of_its_base64() -> None:
    large = GIF + bytes(400_000)
    model = FakeModel(["Yes."] * 3)
    options = {"pictures": {"tokens": 900}, "limits": {"context_tokens": 2048, "passages": 0}}
    async with AgentTester(LLMAgent, model=model, options=options) as t:
        link, other = t.add_file("daisy.gif", large), t.add_file("rose.gif", GIF)
        await t.ask(attach(link))
        await t.ask(attach(other))
        await t.ask("And now?")
        used = [turn["meta"]["usage"]["prompt_tokens"] for turn in await stored_turns(t)]
    # Two pictures and the texts are more than the limit: then the turn with the older one is left out.
    assert [request.pictures for request in model.requests] == [[large], [GIF], [GIF]]
    assert all(900 < tokens < 2048 for tokens in used)
    assert len(used) == 3


async def test_a_picture_of_a_message_that_a_guardrail_changes_is_not_shown() -> None:
    model = FakeModel(["Yes."])
    guardrails = [{"keywords": ["secret"], "action": "redact", "replacement": "[…]"}]
    async with AgentTester(LLMAgent, model=model, options={"pictures": True, "input_guardrails": guardrails}) as t:
        await t.ask(attach(t.add_file("daisy.gif", GIF), query="a secret"))
    assert model.requests[0].pictures == []


async def test_merged_messages_keep_their_pictures() -> None:
    model = FakeModel(["Yes."])
    options = {"pictures": True, "endpoint": {"merge_messages": True}}
    async with AgentTester(LLMAgent, model=model, options=options) as t:
        await t.ask(attach(t.add_file("daisy.gif", GIF)))
    [request] = model.requests
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert request.pictures == [GIF]
    assert request.question.endswith("What is it?")


async def test_the_log_of_a_debugger_has_little_of_a_picture_that_an_error_quotes(caplog: pytest.LogCaptureFixture) -> None:
    large = GIF + bytes(20_000)

    async def quote(wire: CompletionStream) -> Any:
        return await error_answer(400, f"told to fail: {json.dumps(wire.body)}")(wire)

    caplog.set_level(logging.DEBUG)
    async with WebServer({"/a.gif": page(large)}) as web, run_helper_agent(quote, pictures=PUBLIC) as (server, t):
        with pytest.raises(PeerFailedError):
            await t.ask(attach(web.url("/a.gif")))
    assert sent_pictures(server.requests[0]) == [large]
    assert "small answered 400: " in caplog.text
    assert "A" * 4000 not in caplog.text


async def test_the_script_that_plays_a_model_answers_a_question_with_a_picture() -> None:
    async with AgentTester(LLMAgent, options={"model": "script", "pictures": True}) as t:
        answer = await t.ask(attach(t.add_file("daisy.gif", GIF), query="Remember that I like daisies"))
    assert (answer.text or "").startswith('I will remember: "I like daisies"')


@pytest.mark.parametrize(
    ("pictures", "problem"),
    [
        ({"allow_private": ["10.0.0.0/99"]}, "options.pictures.allow_private"),
        ({"number": 0}, "options.pictures.number"),
        ({"size": 1}, "options.pictures.size"),
        ("yes", "options.pictures"),
    ],
)
async def test_a_wrong_option_is_named(pictures: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        async with AgentTester(LLMAgent, model=FakeModel([]), options={"pictures": pictures}):
            pass


async def test_the_empty_mapping_switches_pictures_on() -> None:
    model = FakeModel(["A daisy."])
    async with AgentTester(LLMAgent, model=model, options={"pictures": {}}) as t:
        await t.ask(attach(t.add_file("daisy.gif", GIF)))
    assert model.requests[0].pictures == [GIF]
    assert Pictures() == Pictures.model_validate({})


def test_the_first_bytes_tell_what_pillow_writes(tmp_path: Path) -> None:
    for kind in PICTURES:
        Image.new("RGB", (2, 2)).save(tmp_path / f"a.{kind}")
        assert recognise_picture((tmp_path / f"a.{kind}").read_bytes()) == f"image/{kind}"
    for data in (b"", b"RIFF....WAVE", b"<svg/>", b"GIF", b"BM", b"%PDF-1.7"):
        assert recognise_picture(data) is None
