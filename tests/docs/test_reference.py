"""The reference is that of the code, and its examples are valid."""

from __future__ import annotations

import re
import shlex
from xml.etree.ElementTree import fromstring

import click
import pytest

from spade_coreason.cli.app import cli
from spade_coreason.contracts import ErrorCode
from spade_coreason.domain.messages import RESERVED_METADATA, InboundRequest, ReplyEvent
from spade_coreason.exceptions import CoReasonError
from spade_coreason.xmpp.codec import decode
from tests.docs import cli_reference, errors_reference, events_reference, generate
from tests.docs.pages import DOCS, ROOT
from tests.docs.settings_reference import Group, Key, read_settings

REFERENCE = DOCS / "reference"


def test_the_generated_parts_are_current() -> None:
    old = [path.name for path, text in generate.build_files().items() if path.read_text(encoding="utf-8") != text]
    assert old == [], "run `python -m tests.docs.generate`"


def test_each_generated_part_has_one_place() -> None:
    places = [
        name
        for page in REFERENCE.glob("*.md")
        for name in re.findall(r"^<!-- generated: (.+) -->$", page.read_text(encoding="utf-8"), re.M)
    ]
    assert sorted(places) == sorted(generate.PARTS)


def test_every_setting_is_described() -> None:
    page = (REFERENCE / "configuration.md").read_text(encoding="utf-8")

    def check(group: Group) -> None:
        for part in group.parts:
            if isinstance(part, Group):
                assert part.text
                check(part)
            elif f"### `{part.path}`" not in page:  # a repeated quota has a row
                assert re.search(rf"^\| `{part.name}` \|", page, re.M), part.path

    check(read_settings())


def test_a_setting_has_its_type_its_default_and_its_text() -> None:
    keys: dict[str, Key] = {}

    def collect(group: Group) -> None:
        for part in group.parts:
            if isinstance(part, Group):
                collect(part)
            else:
                keys[part.path] = part

    collect(read_settings())
    assert keys["server.port"].kind == "whole number, 1 to 65535 or `null`"
    assert keys["approvals.timeout_h"].kind == "number, 1/60 to 168"
    assert keys["server.mode"].kind == "`auto`, `embedded`, `prosody` or `external`"
    assert keys["conversation.assist_timeout_s"].kind == "number, more than 0"
    assert (keys["limits.queue"].kind, keys["limits.queue"].default) == ("whole number, at least 1", 1000)
    assert keys["access.allow"].kind == "list of JIDs and domains or `null`"
    assert keys["agents[].register"].default is False
    assert keys["agents[].jid"].is_required
    assert keys["quotas.room.turns"].text == keys["quotas.person.operator.turns"].text


@pytest.mark.parametrize(("name", "command"), list(cli_reference.commands()), ids=lambda value: str(value))
def test_every_example_of_the_commands_is_valid_usage(name: str, command: click.Command) -> None:
    for line in cli_reference.examples(command):
        for part in re.split(r" && |<|>>?", line):
            words = shlex.split(part)
            if words[:1] != ["spade-coreason"]:
                continue
            found: click.Command | None = cli
            context = click.Context(cli)
            rest = words[1:]
            while isinstance(found, click.Group) and rest:
                found = found.get_command(context, rest.pop(0))
            assert found is not None, line
            found.make_parser(click.Context(found)).parse_args(list(rest))


def test_the_commands_have_their_options_and_exit_codes() -> None:
    text = cli_reference.to_markdown()
    names = [name for name, _ in cli_reference.commands() if name]
    assert re.findall(r"^##+ `(.+)` \{ #", text, re.M) == names
    assert "| `--thread TEXT` |" in text
    ask = text.partition("## `ask`")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d) \|", ask, re.M) == ["0", "1", "2", "3", "4", "5", "6"]


def test_the_codec_reads_the_events_that_the_page_shows() -> None:
    attributes = "xmlns='jabber:client' from='weather@example.org/agent'"
    stanzas = events_reference.event_examples()
    for (text, _), stanza in zip(events_reference.EVENTS, stanzas, strict=True):
        reply = decode(fromstring(stanza.replace("<message ", f"<message {attributes} ", 1)))
        assert isinstance(reply, ReplyEvent), text
        assert reply.data == events_reference.read_event(stanza)["data"]
    page = (REFERENCE / "events.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^### `([a-z.]+)`", page, re.M))
    assert shown == {events_reference.read_event(stanza)["type"].removeprefix("ai.coreason.") for stanza in stanzas}


def test_a_turn_has_no_event_that_the_page_does_not_show() -> None:
    source = (ROOT / "spade_coreason/domain/event_data.py").read_text(encoding="utf-8")
    written = set(re.findall(r'return "((?:stream|block|request)\.[a-z]+)"', source))
    page = (REFERENCE / "events.md").read_text(encoding="utf-8")
    assert written
    assert {kind for kind in written if f"### `{kind}`" not in page} == set()


def test_each_error_of_the_package_is_in_the_table() -> None:
    names = [error.__name__ for _, error in errors_reference.exceptions()]
    declared = set()
    for path in (ROOT / "spade_coreason").rglob("*.py"):
        declared |= set(re.findall(r"^class ([A-Z]\w*Error)\((?:\w*Error)\):", path.read_text(encoding="utf-8"), re.M))
    subclasses = {error.__name__ for error in _all_subclasses(CoReasonError)}
    assert names[0] == "CoReasonError"
    assert len(names) == len(set(names))
    assert subclasses & declared <= set(names)
    assert {"WithheldError", "AddressInUseError", "BudgetExceededError", "ContextTooLongError"} <= set(names)


def _all_subclasses(error: type[CoReasonError]) -> set[type[CoReasonError]]:
    return {error, *(each for subclass in error.__subclasses__() for each in _all_subclasses(subclass))}


def test_each_code_and_exit_code_has_its_meaning() -> None:
    table = errors_reference.codes_table()
    assert [int(code) for code in re.findall(r"^\| (\d+) \| `\w+` \| \w", table, re.M)] == list(ErrorCode)
    assert list(cli_reference.exit_codes()) == [0, 1, 2, 3, 4, 5, 6, 75, 130]


def table_keys(heading: str) -> list[str]:
    page = (REFERENCE / "python-api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page.partition(f"\n{heading}\n")[2].partition("\n#")[0], re.M)
    return [key for row in rows for key in re.findall(r"`(\w+)`", row)]


def test_the_page_of_the_python_api_lists_the_keys_of_a_request() -> None:
    message = decode(
        fromstring(
            "<message xmlns='jabber:client' from='alice@example.org/phone' to='a@example.org' id='1'><body>look</body>"
            "<x xmlns='jabber:x:oob'><url>https://example.org/cat.png</url></x>"
            "<x xmlns='jabber:x:oob'><url>ftp://example.org/cat.png</url></x></message>"
        )
    )
    assert isinstance(message, InboundRequest)
    [attachment] = message.payload["attachments"]
    assert table_keys("### The payload") == [*message.payload, *attachment]
    assert set(table_keys("### The metadata")) == RESERVED_METADATA
