"""What may be typed behind a slash in a chat, and the agents that it chooses among."""

from __future__ import annotations

import pytest

from spade_coreason.cli.chat.commands import complete, is_chat_command, is_command, is_quit_command, parse_commands, run_command
from spade_coreason.cli.chat.roster import ChatRoster

ECHO, NOTES = ("echo@localhost", "Repeats what you say"), ("notes@localhost", "Remembers what you tell it")


@pytest.fixture
def company() -> ChatRoster:
    return ChatRoster([ECHO, NOTES])


def test_to_alone_says_how(company: ChatRoster) -> None:
    assert run_command("/to", company, 80) == "  /to NAME goes to an agent; there are echo, notes."
    assert run_command("/to", ChatRoster([ECHO]), 80) == "  /to NAME goes to an agent; there is echo."


def test_to_somebody_who_is_not_there_says_who_is(company: ChatRoster) -> None:
    assert run_command("/to nobody", company, 80) == "  There is no agent nobody; there are echo, notes."
    assert company.name == "echo"


@pytest.mark.parametrize("text", ["/to notes", "/TO Notes", "/to  notes@localhost"])
def test_to_goes_to_a_name_or_a_jid_in_any_case(company: ChatRoster, text: str) -> None:
    assert run_command(text, company, 80) == ""
    assert company.jid == "notes@localhost"


def test_a_slash_alone_is_help(company: ChatRoster) -> None:
    assert run_command("/", company, 80) == run_command("/HELP", company, 80)
    assert "Tab changes the agent" in run_command("/", company, 80)
    assert "Tab changes the agent" not in run_command("/", ChatRoster([ECHO]), 80)


def test_help_fits_in_80_columns_without_breaks(company: ChatRoster) -> None:
    assert run_command("/help", company, 80) == run_command("/help", company, None)


def test_agents_are_shown_with_what_they_do(company: ChatRoster) -> None:
    assert run_command("/agents", company, 80) == "  echo    Repeats what you say\n  notes   Remembers what you tell it"


def test_a_description_is_one_line_without_control_characters() -> None:
    assert run_command("/agents", ChatRoster([("a@localhost", "one\ntwo\x1b[31m")]), 80) == "  a   one two[31m"


def test_what_the_chat_does_not_know_is_for_the_agent(company: ChatRoster) -> None:
    assert [is_chat_command(text) for text in ("/", "/HELP", "/to notes", "/dance now", "/history")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_the_commands_of_the_agent_are_completed_and_shown(company: ChatRoster) -> None:
    company.set_commands(
        "echo@localhost", parse_commands("I am echo.\n\n/help   this\n/history   what\n/forget me   x\nnot / this")
    )
    assert complete("/h", company) == ["/help", "/history"]
    assert run_command("/help", company, 80).endswith("\n  The agent knows:\n  /history     what\n  /forget me   x")
    company.switch_by(1)
    assert complete("/h", company) == ["/help"]
    assert company.jids_without_commands == ["notes@localhost"]


def test_two_slashes_are_a_text_that_begins_with_one() -> None:
    assert is_command("/help")
    assert not is_command("//help")
    assert not is_command("help")


def test_quit_and_exit_leave_in_any_case() -> None:
    assert [is_quit_command(text) for text in ("/quit", "/EXIT", "quit", "/quitter")] == [True, True, False, False]


def test_commands_and_behind_to_agents_are_completed(company: ChatRoster) -> None:
    assert complete("/", company) == ["/agents", "/exit", "/help", "/quit", "/to"]
    assert complete("/A", company) == ["/agents"]
    assert complete("/to ", company) == ["echo", "notes"]
    assert complete("/To n", company) == ["notes"]
    assert complete("/help n", company) == []


def test_agents_of_the_same_name_are_known_by_their_jids() -> None:
    company = ChatRoster([ECHO, ("echo@example.org", ""), NOTES])
    assert company.names == ["echo@localhost", "echo@example.org", "notes"]
    assert run_command("/to echo@example.org", company, 80) == ""
    assert company.name == "echo@example.org"


def test_behind_the_last_agent_comes_the_first(company: ChatRoster) -> None:
    company.switch_by(-1)
    assert company.name == "notes"
    company.switch_by(1)
    assert company.name == "echo"
