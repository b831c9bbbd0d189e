"""The short way to write an agent, and the short way to test one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from spade_coreason import (
    AgentDefinition,
    AgentInteractionMemory,
    AgentInterface,
    AgentRequest,
    AgentTester,
    ConfigError,
    Files,
    MemoryConfig,
    MemoryStrategy,
    Peers,
    Response,
    ResponseHandler,
    Session,
    SessionHandle,
    agent,
)
from spade_coreason.domain.messages import TextEmitted
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError, PeerTimeoutError, PeerUnavailableError, UploadError
from spade_coreason.runtime import UnknownClientFeatures
from spade_coreason.runtime.channels import encode_reply
from spade_coreason.testing import LocalChannel, LocalNetwork, PlatformLimits, Policy, Rules
from tests.support.clock import Clock, LoopClock
from tests.support.errors import ExpectedErrors
from tests.support.foreign_stanzas import person_request, program_request
from tests.support.profiling import count_calls


@agent(description="Knows the weather")
async def weather(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    city = request.payload["query"] or await session.get("city", "Valencia")
    await session.store("city", city)
    await response.thought("Looking out of the window…")
    await response.markdown(f"It is sunny in **{city}**.")


@agent
async def echo(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    """Repeats what you say.

    And more.
    """
    await response.markdown(request.payload["query"])


class CountingAgent:
    """Counts, in the agent object and in the session."""

    def __init__(self) -> None:
        self.turns = 0

    manifest = AgentDefinition.simple("counting")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.turns += 1
        count = await session.get("told", 0) + 1
        await session.store("told", count)
        await response.markdown(f"{self.turns} {count}")


# The decorator


def test_the_decorator_makes_an_agent() -> None:
    for candidate in (weather, echo):
        assert isinstance(candidate, AgentInterface)
        assert not isinstance(candidate, type)


def test_name_description_and_version_come_from_the_function_unless_given() -> None:
    assert echo.manifest.metadata.name == "echo"
    assert echo.manifest.capabilities[0].description == "Repeats what you say."
    assert weather.manifest.capabilities[0].description == "Knows the weather"
    policy = MemoryConfig(strategy=MemoryStrategy.ALL)

    @agent(name="other", version="2.0.0", description="d", memory=policy)
    async def named(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None: ...

    assert (named.manifest.metadata.name, named.manifest.metadata.version) == ("other", "2.0.0")
    assert named.manifest.config.memory == policy


async def generator(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> Any:
    yield 1


async def positional(request: AgentRequest, session: SessionHandle, response: ResponseHandler, option: Any, /) -> None: ...


async def manifested(request: AgentRequest, session: SessionHandle, response: ResponseHandler, manifest: Any) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda request, session, response: None, "<lambda> must be a function written with `async def`"),
        (CountingAgent, "CountingAgent is a class; a class with `manifest` and `assist` needs no decorator"),
        ("weather", "'weather' must be a function written with `async def`"),
        (asyncio.sleep, "sleep must take (request, session, response) first"),
        (generator, "generator is a generator; answer with `await response.markdown(...)`, not with `yield`"),
        (echo, "echo is already an agent; use @agent once"),
        (positional, "positional takes option by position only; it is filled by name: remove the `/`"),
        (
            manifested,
            "manifested has a parameter `manifest`; use the arguments name, version and description of @agent instead",
        ),
    ],
)
def test_anything_but_a_coroutine_of_three_parameters_is_refused_in_one_line(wrong: Any, line: str) -> None:
    with pytest.raises(TypeError) as error:
        agent(wrong)
    assert str(error.value) == f"@agent: {line}"


async def test_a_partial_of_a_coroutine_will_do() -> None:
    async def answer_what(request: AgentRequest, session: SessionHandle, response: ResponseHandler, *, what: str) -> None:
        await response.markdown(what)

    async with AgentTester(agent(name="partial")(partial(answer_what, what="hello"))) as t:
        assert (await t.ask("")).text == "hello"


async def test_further_parameters_are_filled_by_name() -> None:
    @agent
    async def parts(
        request: AgentRequest,
        session: SessionHandle,
        response: ResponseHandler,
        peers: Peers,
        memory: AgentInteractionMemory,
        greeting: str,
        times: int = 2,
    ) -> None:
        await memory.aadd_information("c", str(await peers.ask("echo@localhost", greeting)))
        await response.markdown(" ".join(await memory.aget_information("c") * times))

    async with AgentTester(parts, peers={"echo@localhost": echo}, options={"greeting": "hello"}) as t:
        assert (await t.ask("")).text == "hello hello"
        assert isinstance(t.agent, AgentInterface)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "options.greeting: is missing, and takes_one needs it; set a value"),
        ({"greting": 1}, 'options.greting: unknown option of takes_one; did you mean "greeting"?'),
    ],
)
async def test_a_missing_or_unknown_option_is_named(options: dict[str, Any], line: str) -> None:
    @agent
    async def takes_one(request: AgentRequest, session: SessionHandle, response: ResponseHandler, greeting: str) -> None: ...

    with pytest.raises(ConfigError) as error:
        await AgentTester(takes_one, options=options).__aenter__()
    assert str(error.value) == line


async def test_a_function_of_three_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="takes no options"):
        await AgentTester(echo, options={"x": 1}).__aenter__()


async def test_a_coroutine_may_take_any_option() -> None:
    @agent
    async def any_option(
        request: AgentRequest, session: SessionHandle, response: ResponseHandler, *args: Any, **options: Any
    ) -> None:
        await response.markdown(str(options))

    async with AgentTester(any_option, options={"a": 1}) as t:
        assert (await t.ask("")).text == "{'a': 1}"


# The tester


async def test_the_tester_keeps_variables_between_questions() -> None:
    async with AgentTester(weather) as t:
        await t.ask("Berlin")
        assert "Berlin" in (await t.ask("")).text


async def test_an_answer_has_text_data_and_events() -> None:
    @agent
    async def table(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("first")
        await response.data({"a": 1}, title="t", view_hint="KEY_VALUE")
        await response.markdown("second")

    async with AgentTester(table) as t:
        answer = await t.ask("x")
        assert str(answer) == answer.text == "first\n\nsecond"
        assert [block["data"] for block in answer.data] == [{"a": 1}]
        assert [event.type for event in answer.events] == [
            "block.markdown",
            "block.data",
            "block.markdown",
            "request.completed",
        ]
        assert answer.conversation_id == "tester@localhost_agent@localhost"
        assert await t.say("x") == ["first", "*t*\na: 1", "second"]


async def test_a_class_a_factory_and_an_instance_are_agents() -> None:
    for candidate in (CountingAgent, CountingAgent(), lambda: CountingAgent()):
        async with AgentTester(candidate) as t:
            assert (await t.ask("")).text == "1 1"


async def test_a_restart_makes_a_new_agent_of_a_class_and_keeps_an_instance() -> None:
    for candidate, after in ((CountingAgent, "1 2"), (CountingAgent(), "2 2")):
        async with AgentTester(candidate) as t:
            await t.ask("")
            await t.restart()
            assert (await t.ask("")).text == after


async def test_users_and_threads_are_conversations_of_their_own() -> None:
    async with AgentTester(weather) as t:
        await t.ask("Berlin", user="alice@localhost")
        await t.ask("Rome", user="bob@localhost", thread="holidays")
        assert "Valencia" in (await t.ask("", user="carol@localhost")).text
        assert "Rome" in (await t.ask("", user="bob@localhost", thread="holidays")).text
        assert {record.conversation_id for record in await t.conversations()} == {
            "alice@localhost_agent@localhost",
            "holidays",
            "carol@localhost_agent@localhost",
        }


async def test_a_stream_is_given_as_it_comes() -> None:
    resume = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        stream = await response.create_stream()
        await stream.write("one ")
        await resume.wait()
        await stream.write("two")

    async with AgentTester(slow) as t:
        chunks = []
        async for event in t.stream("go"):
            if event.type == "stream.chunk":
                chunks.append(event.data["chunk"])
                resume.set()
        assert chunks == ["one ", "two"]


async def test_ask_raises_the_errors_of_an_agent(expected_errors: ExpectedErrors) -> None:
    expected_errors("ZeroDivisionError: a secret")

    @agent
    async def failing(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        match request.payload["query"]:
            case "hang" if "redelivered" not in request.metadata:
                await asyncio.Event().wait()
            case "raise":
                raise ZeroDivisionError("a secret")
        await response.error("out of order")

    async with AgentTester(failing) as t:
        with pytest.raises(PeerFailedError, match="agent@localhost reports: out of order"):
            await t.ask("report")
        with pytest.raises(PeerFailedError, match="Something went wrong") as error:
            await t.ask("raise")
        assert "secret" not in str(error.value)
        with pytest.raises(PeerTimeoutError, match=r"did not answer in 0\.05 s"):
            await t.ask("hang", thread="t", timeout=0.05)
        with pytest.raises(TimeoutError):
            await t.say("hang", timeout=0.05)
        with pytest.raises(PeerRefusedError):
            await t.ask("x", user="stranger@elsewhere")
        with pytest.raises(PeerUnavailableError):
            await t.ask("x", to="nobody@localhost")
        await t.restart(grace_s=0)  # what hangs does not keep it from stopping


async def test_a_person_reads_all_texts_of_an_answer_and_only_their_own() -> None:
    release = asyncio.Event()

    @agent
    async def several(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "later":
            await release.wait()
        for word in request.payload["query"].split():
            await response.markdown(word)

    async with AgentTester(several) as t:
        waiting = asyncio.create_task(t.say("later"))
        assert await t.say("one two", thread="t") == ["one", "two"]
        assert await t.say("three", user="bob@localhost") == ["three"]
        assert await t.say("  ", thread="u") == []
        release.set()
        assert await waiting == ["later"]
        assert t.unread() == []


async def test_replies_that_no_call_waited_for_are_unread() -> None:
    async with AgentTester(echo) as t:
        t.send_stanza("<message to='agent@localhost' type='chat'><body>hi</body></message>")
        await t.settled()
        assert t.unread() == ["hi"]
        assert t.unread() == []


async def test_messages_during_a_restart_are_answered_after_it() -> None:
    class Closing(CountingAgent):
        async def shutdown(self) -> None:
            if not t.unread():
                t.send_stanza("<message to='agent@localhost' type='chat'><body>hi</body></message>")

    async with AgentTester(Closing) as t:
        await t.restart()
        await t.settled()
        assert t.unread() == ["1 1"]


async def test_a_manifests_memory_policy_holds() -> None:
    @agent(memory=MemoryConfig(limit=1))
    async def forgetful(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(request.payload["query"])

    async with AgentTester(forgetful) as t:
        assert t.runners["agent@localhost"].conversations.history_windows.policy.limit == 1


async def test_the_clock_is_the_time_of_requests_and_memories() -> None:
    @agent
    async def when(
        request: AgentRequest, session: SessionHandle, response: ResponseHandler, memory: AgentInteractionMemory
    ) -> None:
        await memory.aadd_information("c", "x")
        await memory.aflush()
        await response.markdown(f"{request.created_at:%Y-%m-%d} {'2025-11-20T12:00' in memory.path.read_text()}")

    async with AgentTester(when, clock=Clock()) as t:
        assert (await t.ask("")).text == "2025-11-20 True"


async def test_an_agents_memory_is_complete_in_its_file_after_a_stop() -> None:
    found: list[AgentInteractionMemory] = []

    @agent
    async def keeper(
        request: AgentRequest, session: SessionHandle, response: ResponseHandler, memory: AgentInteractionMemory
    ) -> None:
        found.append(memory)
        await memory.aadd_information("c", request.payload["query"])

    async with AgentTester(keeper) as t:
        await t.ask("kept")
        assert found[0].journal_path.exists()
        await t.restart()
        assert "kept" in found[0].path.read_text()
        assert not found[0].journal_path.exists()


async def test_an_agent_that_cannot_start_leaves_nothing_behind() -> None:
    directories: list[Path] = []

    class Broken(CountingAgent):
        def __init__(self, memory: AgentInteractionMemory) -> None:
            directories.append(memory.path.parent.parent)

        def startup(self) -> None:
            assert directories[0].exists()
            raise OSError("no coffee")

    with pytest.raises(OSError, match="no coffee"):
        await AgentTester(Broken).__aenter__()
    assert not directories[0].exists()


async def test_a_lone_tester_starts_quickly() -> None:
    with LoopClock(), count_calls() as calls:  # it waits for no time to pass
        async with AgentTester(echo):
            pass
    assert calls.total() < 100_000  # some 12,000, and 20,000 the first time; with migrations more than a million
    assert calls["fsync"] == calls["fdatasync"] == 0


def test_tests_of_agents_import_no_xmpp() -> None:
    code = (
        "import sys; from spade_coreason import AgentTester, agent; print({'spade', 'slixmpp', 'pyjabber'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


async def test_settled_returns_after_every_reply_has_arrived() -> None:
    read: list[str] = []
    async with AgentTester(echo) as t:

        async def look() -> list[str]:
            await t.settled()
            read.extend(t.unread())
            return read[:]

        t.send_stanza(f"<message to='{t.jid}' type='chat'><body>hello</body></message>", user="tester@localhost")
        looks = []
        while not read:  # one begins to wait in every step of the loop until the answer is there
            looks.append(asyncio.create_task(look()))
            await asyncio.sleep(0)
        assert all(texts == ["hello"] for texts in await asyncio.gather(*looks))


@pytest.mark.parametrize("thoughts", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("thought", [(7,), ("seven", "DONE")])
async def test_a_thought_that_is_no_text_is_an_error_shown_or_not(
    thoughts: bool, thought: tuple[Any, ...], expected_errors: ExpectedErrors
) -> None:
    expected_errors("thought")

    @agent
    async def counts(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.thought(*thought)
        await response.markdown("seven")

    async with AgentTester(counts, policy=Policy(rules=Rules(thoughts=thoughts))) as t:
        [text] = await t.say("think")
        assert text.startswith("Something went wrong on my side (incident ")


# What a person's client can do


async def test_a_person_sends_without_waiting_and_reads_what_comes() -> None:
    async with AgentTester(echo) as t:
        assert t.send("one", id="q1", thread="t") == "q1"
        t.send("two")
        answers = {message.text: message for message in (await t.message(), await t.message())}
        one, two = answers["one"], answers["two"]  # two conversations: either may be answered first
        assert (one.thread, one.sender) == ("t", "agent@localhost")
        assert (two.thread, two.reply_to, two.corrects, two.link) == (None, None, None, None)
        assert sorted(message.text for message in t.messages() if message.text) == ["one", "two"]
        assert t.messages("bob@localhost") == []
        assert t.unread() == []
        with pytest.raises(TimeoutError):
            await t.message(timeout=0.01)


async def test_messages_from_before_a_restart_can_be_read_after_it() -> None:
    async with AgentTester(echo) as t:
        await t.say("one")
        await t.restart()
        await t.say("two")
        assert [message.text for message in t.messages()] == ["one", "two"]


async def test_clients_with_corrections_and_replies_get_answers_that_grow_and_refer() -> None:
    resume = asyncio.Event()

    @agent
    async def slow(request: Any, session: Any, response: Any) -> None:
        stream = await response.create_stream()
        await stream.write("one ")
        await resume.wait()
        await stream.write("two")

    async with AgentTester(slow, client_features={"corrections", "replies"}) as t:
        question = t.send("go", extra="<active xmlns='http://jabber.org/protocol/chatstates'/>")
        growing = await t.message()
        resume.set()
        await t.settled()
        whole = t.messages()[-1]
        assert (growing.text, growing.reply_to, growing.corrects) == ("one", question, None)
        assert (whole.text, whole.reply_to, whole.corrects) == ("one two", question, growing.id)
        assert "composing" in [message.state for message in t.messages()]
        t.unread()
        t.client_features = frozenset()
        assert await t.say("go") == ["one two"]


async def test_a_markable_message_is_displayed_when_the_agent_begins() -> None:
    async with AgentTester(echo) as t:
        sent = t.send("hi", extra="<markable xmlns='urn:xmpp:chat-markers:0'/>")
        await t.settled()
        assert sent in [message.displayed for message in t.messages()]


async def test_an_upload_that_is_refused_is_an_error_in_the_agent() -> None:
    async def full(name: str, data: bytes, type: str, progress: Any) -> str:
        raise UploadError(name, "the server is full")

    @agent
    async def keeper(request: Any, session: Any, response: Any, files: Files) -> None:
        try:
            await files.upload("a.txt", b"x")
        except UploadError as error:
            await response.markdown(str(error))

    async with AgentTester(keeper, upload=full) as t:
        assert "the server is full" in (await t.ask("go")).text
        assert t.uploaded == {}


async def test_a_restart_may_bring_another_policy() -> None:
    async with AgentTester(echo) as t:
        await t.restart(policy=Policy(limits=PlatformLimits(queue=7)))
        await t.restart()
        assert t.runners[t.jid].policy.limits.queue == 7


class Named:
    """Answers with the name and the temperature of its manifest."""

    def __init__(self, manifest: AgentDefinition) -> None:
        self.manifest = manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        config = self.manifest.config.llm_config
        await response.markdown(f"{self.manifest.metadata.name} {config.temperature if config else '-'}")


async def test_an_agent_is_tested_with_its_manifest_file() -> None:
    file = Path(__file__).parents[1] / "examples" / "mcp_agent" / "manifest.yaml"
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    async with AgentTester(Named, manifest=file) as t:
        assert (await t.ask("Who are you?")).text.startswith(f"{name} ")


async def test_an_agent_is_tested_with_a_manifest() -> None:
    async with AgentTester(Named, manifest=AgentDefinition.simple("clerk"), peers={"other": Named}) as t:
        assert (await t.ask("Who are you?")).text == "clerk -"
        assert (await t.ask("Who are you?", to="other@localhost")).text == "Named -"


def test_a_request_without_a_session_says_what_to_pass() -> None:
    fields: dict[str, Any] = {"payload": {"query": "hi"}}
    with pytest.raises(ValueError, match="pass the payload itself, a mapping, in place of a request"):
        AgentRequest(**fields)


async def test_a_device_of_a_user_gets_answers_and_bounces_of_its_own() -> None:
    async with AgentTester(echo) as t:
        device = "tester@localhost/phone"
        assert (await t.ask("hi", user=device)).text == "hi"
        with pytest.raises(PeerUnavailableError):
            await t.ask("hi", user=device, to="nobody@localhost")


@agent
async def mirror(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    await response.markdown(repr((request.payload, request.metadata.get("thread"))))


async def test_a_program_is_read_as_over_a_server_and_its_messages_are_listed() -> None:
    async with AgentTester(mirror) as t:
        payload = {"query": "\0\ufffe\ud800</json>", "list": (1, 2)}
        answer = await t.ask(payload, thread="a\ufffe\r\nb")
        read = {"query": "\0?</json>", "list": [1, 2]}
        assert answer.text == repr((read, "a\nb"))
        with pytest.raises(PeerFailedError, match="holds no CloudEvent"):
            await t.ask({"query": float("nan")})
        with pytest.raises(PeerUnavailableError):
            await t.ask("hello", to="nobody@localhost")
        event_batch, _, bounce = t.messages()
        assert event_batch.sender == t.jid
        assert event_batch.xml.findtext("{urn:xmpp:json:0}json", "").startswith("[")
        assert (bounce.sender, bounce.xml.get("type")) == ("nobody@localhost", "error")


@agent
async def talkative(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    """Answers in every way."""
    if request.payload["query"] == "wait":
        await asyncio.Event().wait()
    await response.markdown("**bold** & <plain>\x00")
    await response.thought("hm")
    stream = await response.create_stream()
    for word in ("one ", "two ", "three"):
        await stream.write(word)
    await response.data({"a": "<1>"}, title="t", view_hint="KEY_VALUE")
    await response.markdown("word " * 30_000)
    count = await session.get("count", 0) + 1
    await session.store("count", count)
    await response.markdown(f"{count} {request.metadata['channel']} {request.metadata.get('thread')}")


@agent
async def asking(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
    await response.markdown((await peers.ask("mirror@localhost", "hello")).text)


OF_XML = ("XML", "parse_stanza", "escape_clean", "escape_attribute", "make_frame", "thread_element")
"""The functions that parse stanzas, and those that write them."""


async def test_ask_say_and_stream_write_and_read_no_xml() -> None:
    async with AgentTester(talkative, client_features={"corrections", "replies"}, allow=("localhost",)) as t:
        with count_calls() as calls:
            for text, thread in (("hi", "t"), ("hi", None), ("/help", None), (" ", None), ("hi", "x" * 1025)):
                await t.say(text, thread=thread)
            await t.say("hi", user="stranger@elsewhere.example")
            await t.say("hi", to="nobody@localhost")
            assert (await t.ask("hi", thread="p")).data
            assert [event async for event in t.stream({"query": "hi"}, thread="q")]
            with pytest.raises(PeerUnavailableError):
                await t.ask("hi", to="nobody@localhost")
            with pytest.raises(PeerFailedError):
                await t.ask({"query": float("nan")})
            texts = [message.text for message in t.messages()]
        assert {name: calls[name] for name in OF_XML} == dict.fromkeys(OF_XML, 0)
        assert " program p" in "".join(message.json or "" for message in t.messages())
        assert any("/help" in text for text in texts if text)
        with count_calls() as calls:
            t.send("hi", thread=f"{uuid4()}")  # the frame of a known thread is cached
            await t.settled()
        assert [name for name in OF_XML if not calls[name]] == []  # so these names are those of today


async def test_what_agents_say_to_each_other_is_no_xml() -> None:
    async with AgentTester(asking, peers={"mirror": mirror}) as t:
        with count_calls() as calls:
            assert "hello" in (await t.ask("hello")).text
            assert "hello" in (await t.say("hello"))[0]
        assert calls["read_local"] == 4  # two requests, and two replies
        assert calls["parse_stanza"] == calls["XML"] == 0


# What `say` does is what `send` does


async def say(t: AgentTester, text: str, **options: Any) -> None:
    await t.say(text, **options)


async def send(t: AgentTester, text: str, **options: Any) -> None:
    t.send(text, **options)
    await t.settled()


def describe_messages(t: AgentTester, user: str | None = None) -> list[tuple[Any, ...]]:
    """Return the attributes of all messages, with numbers in place of their ids. A long text may be cut some bytes later."""
    messages = t.messages(user)
    numbers = {message.id: number for number, message in enumerate(messages)}
    return [
        (
            m.sender,
            (m.text or "")[:100],
            m.thread,
            m.link,
            m.state,
            m.choices,
            m.error,
            m.reply_to is not None,
            numbers.get(m.corrects or ""),
        )
        for m in messages
    ]


class Asks:
    """Offers answers, and sends the link to a file."""

    manifest = AgentDefinition.simple("asks")

    def __init__(self, files: Files) -> None:
        self._files = files

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown(await self._files.upload("a.txt", b"x"))
        await response.ask("Which?", ["<A>", "B\x00"])


def ways(scenario: Any) -> Any:
    return pytest.mark.parametrize("features", [set(), {"corrections", "replies"}], ids=["plain", "rich"])(scenario)


@ways
async def test_replies_to_say_and_to_send_are_the_same(features: Any) -> None:
    described: list[Any] = []
    for speak in (say, send):
        async with AgentTester(talkative, client_features=features, peers={"asks": Asks}, allow=("localhost",)) as t:
            for text, thread in (("hi", "t"), ("a\r\nb\x00", "<t>\r"), ("/help", None), ("/nonsense", None), ("  ", "t")):
                await speak(t, text, thread=thread)
            await speak(t, "hi", thread="x" * 1025)
            await speak(t, "hi", to="asks@localhost")
            await speak(t, "hi", to="nobody@localhost")
            await speak(t, "hi", to="bob@localhost", user="alice@localhost")  # to a person: nobody, as long as bob is away
            await speak(t, "hi", user="stranger@elsewhere.example")
            described.append((describe_messages(t), describe_messages(t, "stranger@elsewhere.example")))
            described[-1] += (describe_messages(t, "alice@localhost"), sorted(t.uploaded))
    for said, sent in zip(*described, strict=True):
        assert len(said) == len(sent)
        for one, other in zip(said, sent, strict=True):
            assert one == other
    mine = described[0][0]
    assert len(mine) > 20
    assert any("<A>" in choice for message in mine for choice in message[5])
    assert any(message[3] for message in mine)
    assert any(message[6] for message in mine)
    assert any(message[7] for message in mine) is bool(features)


async def test_say_and_send_share_a_conversation_and_its_order() -> None:
    async with AgentTester(CountingAgent) as t:
        assert await t.say("a") == ["1 1"]
        t.send("b")
        saying = asyncio.create_task(t.say("c"))
        await asyncio.sleep(0)
        t.send("d")
        assert await saying == ["2 2", "3 3", "4 4"]  # it waits for all that is queued
        await t.restart()
        assert await t.say("e") == ["1 5"]


async def test_a_person_can_refer_to_a_reply_to_say() -> None:
    reactions: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()

    class Liked(CountingAgent):
        async def feedback(self, interaction: Any, emojis: tuple[str, ...]) -> None:
            reactions.put_nowait(tuple(emojis))

    async with AgentTester(Liked) as t:
        await t.say("a", thread="t")
        [answer] = t.messages()
        t.react(answer.id, "👍")
        t.send("b", reply_to=answer.id)
        assert (await t.message()).thread == "t"
        assert await reactions.get() == ("👍",)


async def test_a_request_of_say_that_a_restart_interrupts_is_answered_after_it() -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    @agent
    async def waiting(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        begun.set()
        await release.wait()
        await response.markdown(request.payload["query"])

    async with AgentTester(waiting) as t:
        first = asyncio.create_task(t.say("one"))
        await begun.wait()
        first.cancel()
        await t.restart(grace_s=0)
        release.set()
        message = await t.message()
        assert (message.text, message.stanza) == ("one", None)
        assert message.xml.findtext("{jabber:client}body") == "one"


async def test_a_stored_reply_is_loaded_for_its_recipient() -> None:
    channel = LocalChannel("agent@localhost/a", LocalNetwork(), 65_536, UnknownClientFeatures())
    for incoming in (person_request(), program_request()):
        [message] = encode_reply(channel.make_encoder(incoming, uuid4()), TextEmitted("hi", 1))
        assert channel.load_message(message.content).recipient == message.recipient


async def test_a_repeated_request_of_ask_gets_the_same_reply() -> None:
    async with AgentTester(CountingAgent) as t:
        request = AgentRequest(session_id=uuid4(), payload={"query": "x"})
        assert (await t.ask(request)).text == (await t.ask(request)).text == "1 1"
        await t.restart()
        assert (await t.ask(request)).text == "1 1"
