"""Commands of an agent: the methods that can be one, and the form fields of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session, SessionHandle, command
from spade_coreason.domain.forms.fields import Choice, Field, FieldError
from spade_coreason.runtime.commands.decorator import commands_of

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]  # what only a type checker sees is no hindrance


class Agent:
    """Has commands, one of them inherited."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.ask("Which city?", ["Berlin", "New York"])

    @command("sum", "add numbers", first="the first", loud="whether to shout")
    async def add(
        self,
        session: Unknown,
        first: int,
        second: int = 1,
        loud: bool = False,
        note: str | None = None,
        how: Literal["+", "-"] = "+",
    ) -> str:
        """Not shown."""
        total = first + second if how == "+" else first - second
        return f"{total}{'!' if loud else ''} {note or ''}".rstrip()


class InheritingAgent(Agent):
    """Inherits."""


def test_fields_come_from_the_parameters() -> None:
    [own] = commands_of(InheritingAgent())
    assert (own.name, own.description) == ("sum", "add numbers")
    assert own.fields == (
        Field("first", "the first", "number", is_required=True),
        Field("second", "second", "number", default=1),
        Field("loud", "whether to shout", "yes or no", default=False),
        Field("note", "note", "text"),
        Field("how", "how", "choice", default="+", choices=(Choice("+", "+"), Choice("-", "-"))),
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/sum 1", "2"),
        ("/SUM 1 2 yes", "3!"),
        ('/sum 1 2 no "a b" -', "-1 a b"),
        ("/sum", "first is missing: the first. Write `/sum FIRST [SECOND] [LOUD] [NOTE] [HOW]`."),
        ("/sum x", 'first must be a number, not "x". Write `/sum FIRST [SECOND] [LOUD] [NOTE] [HOW]`.'),
        ("/sum 1 1 loud", 'loud must be yes or no, not "loud". Write `/sum FIRST [SECOND] [LOUD] [NOTE] [HOW]`.'),
        (
            "/sum 1 1 no n *",
            'how must be one of +, -, not "*". Put several words of note in quotes. '
            "Write `/sum FIRST [SECOND] [LOUD] [NOTE] [HOW]`.",
        ),
    ],
)
async def test_the_words_of_a_text_fill_the_fields_in_order(text: str, answer: str) -> None:
    async with AgentTester(InheritingAgent) as t:
        assert await t.say(text) == [answer]


class Reminder:
    """Has a command whose last field is a text."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("reminder")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None: ...

    @command("remind", "remind a person")
    async def remind(self, session: Session, person: str, text: str) -> str:
        return f"{person}: {text}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/remind Ada buy rye bread", "Ada: buy rye bread"),
        ('/remind "Ada and Bob" "buy rye bread"', "Ada and Bob: buy rye bread"),
        ('/remind Ada "rye" or "spelt"', 'Ada: "rye" or "spelt"'),
        ('/remind Ada "', 'Ada: "'),
    ],
)
async def test_the_last_text_may_stand_in_quotes_like_those_before_it(text: str, answer: str) -> None:
    async with AgentTester(Reminder) as t:
        assert await t.say(text) == [answer]


async def _plain(self: Any, session: SessionHandle) -> None: ...
async def _no_session(self: Any) -> None: ...
def _no_coroutine(self: Any, session: SessionHandle) -> None: ...
async def _strange(self: Any, session: SessionHandle, when: dict[str, int]) -> None: ...
async def _several(self: Any, session: SessionHandle, *words: str) -> None: ...
async def _reserved(self: Any, session: SessionHandle, conversation: str) -> None: ...


@pytest.mark.parametrize(
    ("name", "method", "labels", "problem"),
    [
        ("Wetter Bericht", _plain, {}, "is no name"),
        ("x", _no_session, {}, r"takes \(self, session, …\)"),
        ("x", _no_coroutine, {}, "async def"),
        ("x", _strange, {}, "annotate it with str, int, bool or a Literal"),
        ("x", _several, {}, "name every parameter"),
        ("x", _reserved, {}, "rename the parameter"),
        ("x", _plain, {"city": "which"}, "has no parameter city"),
    ],
)
def test_a_method_that_cannot_be_a_command_is_a_clear_error(
    name: str, method: Callable[..., Any], labels: dict[str, str], problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        command(name, "what", **labels)(method)


class Forecast:
    """Tells what the weather will be."""

    def __init__(self, manifest: AgentDefinition) -> None:
        self.manifest = manifest

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.ask("Which city?", ["/forecast Berlin", "/forecast Rome"])

    @command("forecast", "the weather of the next days", city="which city", unit="in which unit")
    async def forecast(self, session: Session, city: str, days: int = 3, unit: Literal["°C", "°F"] = "°C") -> str:
        await session.store("city", city)
        return f"{city}: {days} sunny days, {26 if unit == '°C' else 79} {unit}."


async def test_a_command_stores_variables_and_is_offered_as_a_choice() -> None:
    async with AgentTester(Forecast) as t:
        assert await t.say("/forecast Rome 5") == ["Rome: 5 sunny days, 26 °C."]
        assert await t.say("/memory") == ['- city (here and for all your conversations): "Rome"']
        assert "- /forecast Berlin" in (await t.ask("?")).text


async def test_a_question_of_an_agent_is_a_text_with_choices() -> None:
    async with AgentTester(Agent) as t:
        assert await t.say("hi") == ["Which city?\n\n- Berlin\n- New York"]
        [block] = [event async for event in t.stream("hi") if event.type == "block.markdown"]
        assert block.data["choices"] == [{"value": city, "label": city} for city in ("Berlin", "New York")]


@pytest.mark.parametrize("choices", [[], [""], ["x"] * 21, [1]])
async def test_choices_are_texts_and_not_too_many(choices: list[Any]) -> None:
    class Asks(Agent):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: Response) -> None:
            with pytest.raises(ValueError, match="choices are 1 to 20 texts"):
                await response.ask("Which?", choices)
            await response.markdown("refused")

    async with AgentTester(Asks) as t:
        assert await t.say("hi") == ["refused"]


def test_a_field_parses_the_values_of_forms_and_of_people() -> None:
    switch = Field("s", "", "yes or no", default=True)
    assert [switch.parse(text) for text in ("1", "0", "true", "No", "", None)] == [True, False, True, False, True, True]
    count_field = Field("n", "", "number", minimum=1, maximum=200)
    assert [count_field.parse(text) for text in ("7", "9999")] == [7, 200]
    with pytest.raises(FieldError, match="n must be 1 or more, not -3"):
        count_field.parse("-3")
    with pytest.raises(FieldError, match="n must be a number"):
        count_field.parse("٣")
