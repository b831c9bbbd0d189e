"""Slash commands of a chat, and the agents that it can switch to."""

from __future__ import annotations

import pytest

from spade_coreason.cli.chat.commands import complete, is_chat_command, is_command, is_quit_command, parse_commands, run_command
from spade_coreason.cli.chat.roster import ChatRoster

ECHO, NOTES = ("echo@localhost", "Repeats what you say"), ("notes@localhost", "Remembers what you tell it")


@pytest.fixture
def roster() -> ChatRoster:
    return ChatRoster([ECHO, NOTES])


def test_to_without_a_name_explains_itself(roster: ChatRoster) -> None:
    assert run_command("/to", roster, 80) == "  /to NAME switches to an agent; there are echo, notes."
    assert run_command("/to", ChatRoster([ECHO]), 80) == "  /to NAME switches to an agent; there is echo."


def test_to_an_unknown_agent_lists_the_known_ones(roster: ChatRoster) -> None:
    assert run_command("/to nobody", roster, 80) == "  There is no agent nobody; there are echo, notes."
    assert roster.name == "echo"


@pytest.mark.parametrize("text", ["/to notes", "/TO Notes", "/to  notes@localhost"])
def test_to_goes_to_a_name_or_a_jid_in_any_case(roster: ChatRoster, text: str) -> None:
    assert run_command(text, roster, 80) == ""
    assert roster.jid == "notes@localhost"


def test_a_slash_alone_is_help(roster: ChatRoster) -> None:
    assert run_command("/", roster, 80) == run_command("/HELP", roster, 80)
    assert "Tab switches" in run_command("/", roster, 80)
    assert "Tab switches" not in run_command("/", ChatRoster([ECHO]), 80)


def test_help_fits_in_80_columns_without_breaks(roster: ChatRoster) -> None:
    assert run_command("/help", roster, 80) == run_command("/help", roster, None)


def test_agents_are_shown_with_their_descriptions(roster: ChatRoster) -> None:
    assert run_command("/agents", roster, 80) == "  echo    Repeats what you say\n  notes   Remembers what you tell it"


def test_a_description_is_one_line_without_control_characters() -> None:
    assert run_command("/agents", ChatRoster([("a@localhost", "one\ntwo\x1b[31m")]), 80) == "  a   one two[31m"


def test_unknown_commands_are_sent_to_the_agent(roster: ChatRoster) -> None:
    assert [is_chat_command(text) for text in ("/", "/HELP", "/to notes", "/dance now", "/history")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_the_commands_of_the_agent_are_completed_and_shown(roster: ChatRoster) -> None:
    roster.set_commands(
        "echo@localhost", parse_commands("I am echo.\n\n/help   this\n/history   what\n/forget me   x\nnot / this")
    )
    assert complete("/h", roster) == ["/help", "/history"]
    assert run_command("/help", roster, 80).endswith("\n  Commands of the agent:\n  /history     what\n  /forget me   x")
    roster.switch_by(1)
    assert complete("/h", roster) == ["/help"]
    assert roster.jids_without_commands == ["notes@localhost"]


def test_two_slashes_are_a_text_that_begins_with_one() -> None:
    assert is_command("/help")
    assert not is_command("//help")
    assert not is_command("help")


def test_quit_and_exit_leave_in_any_case() -> None:
    assert [is_quit_command(text) for text in ("/quit", "/EXIT", "quit", "/quitter")] == [True, True, False, False]


def test_commands_are_completed_and_agents_after_to(roster: ChatRoster) -> None:
    assert complete("/", roster) == ["/agents", "/exit", "/help", "/quit", "/to"]
    assert complete("/A", roster) == ["/agents"]
    assert complete("/to ", roster) == ["echo", "notes"]
    assert complete("/To n", roster) == ["notes"]
    assert complete("/help n", roster) == []


def test_agents_of_the_same_name_are_known_by_their_jids() -> None:
    roster = ChatRoster([ECHO, ("echo@example.org", ""), NOTES])
    assert roster.names == ["echo@localhost", "echo@example.org", "notes"]
    assert run_command("/to echo@example.org", roster, 80) == ""
    assert roster.name == "echo@example.org"


def test_after_the_last_agent_comes_the_first(roster: ChatRoster) -> None:
    roster.switch_by(-1)
    assert roster.name == "notes"
    roster.switch_by(1)
    assert roster.name == "echo"
