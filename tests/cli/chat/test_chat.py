"""`chat` in a terminal, beside a running platform with echo, notes and moody."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.support.program import RunningCommand, clean_environment
from tests.support.terminal import Terminal
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

Chat = Callable[[str], Terminal]

# Of the embedded server a terminal sees nothing else; `test_the_demo_in_a_terminal_is_a_chat` chats there.
pytestmark = pytest.mark.parametrize("platform", ["prosody"], indirect=True)


@pytest.fixture
def chat(platform: RunningCommand) -> Iterator[Chat]:
    """Return a function that starts a chat with an agent, in 60 columns."""
    with ExitStack() as stack:

        def start_chat(name: str) -> Terminal:
            terminal = stack.enter_context(closing(Terminal("chat", name, cwd=platform.cwd, columns=60)))
            terminal.wait_for(f"{name} ▸")
            return terminal

        yield start_chat


def test_a_chat_knows_all_agents_of_the_platform_the_named_one_first(chat: Chat) -> None:
    terminal = chat("notes")
    assert terminal.screen.index("notes@localhost") < terminal.screen.index("echo@localhost")
    terminal.type("/agents\r")
    terminal.wait_for(
        r"  notes   Remembers what you tell it\.\r\n  echo    Repeats what you say, word by word\.\r\n  moody   Does"
    )
    terminal.type("\t")
    terminal.wait_for("echo")
    terminal.type("hello\r")
    terminal.wait_for("  hello\r\n.*echo")
    terminal.type("/to moody\r")
    terminal.wait_for("moody")
    terminal.type("/QUIT\r")
    assert terminal.process.wait(TIMEOUT_S) == 0


def test_tab_completes_a_command_and_leaves_the_agent(chat: Chat) -> None:
    terminal = chat("echo")
    terminal.type("/to n\t\r")
    terminal.wait_for("notes ▸")
    terminal.type("/ag\t\r")
    terminal.wait_for("Repeats what you say.*notes ▸")


def test_ctrl_c_at_an_empty_prompt_says_once_how_to_leave(chat: Chat) -> None:
    terminal = chat("echo")
    terminal.type("half")
    terminal.wait_for("half")
    terminal.type("\x03")
    terminal.wait_for_prompt("echo")
    assert "leaves)" not in terminal.screen
    terminal.type("\x03")
    terminal.wait_for(r"\(Ctrl-D or /quit leaves\).*\?2004h.*echo ▸")
    terminal.type("\x03")
    terminal.wait_for_prompt("echo")
    assert terminal.screen.count("/quit leaves)") == 1


def test_an_interrupt_between_two_prompts_does_not_leave(chat: Chat) -> None:
    terminal = chat("echo")
    for _ in range(20):
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("echo ▸")  # what is drawn last of one prompt, or the next
    terminal.type("hello\r")
    terminal.wait_for("  hello\r\n")


def test_arrow_up_brings_back_no_blank_line(chat: Chat) -> None:
    terminal = chat("echo")
    terminal.type("first\r")
    terminal.wait_for("  first\r\n.*echo ▸")
    terminal.type("   \r")
    terminal.wait_for("echo ▸")
    terminal.type("\x1b[A\r")
    terminal.wait_for("  first\r\n.*echo ▸")


def test_a_long_answer_is_wrapped_between_words_and_stays_indented(chat: Chat) -> None:
    terminal = chat("echo")
    terminal.type("one two three four five six seven eight nine ten eleven twelve\r")
    terminal.wait_for("  one two three four five six seven eight nine ten eleven \r\n  twelve\r\n")


def test_ctrl_c_takes_the_question_back_and_the_next_one_is_answered_at_once(chat: Chat) -> None:
    terminal = chat("moody")
    for _ in range(2):  # each would sleep for an hour, and the next one wait for it
        terminal.type("sleep\r")
        terminal.wait_for("waiting for moody…")
        terminal.type("\x03")
        terminal.wait_for(r"\(taken back\).*moody ▸")
    terminal.type("two\r")
    terminal.wait_for(r"two three.*moody ▸")
    assert "^C" not in terminal.screen
    terminal.type("/history 1\r")
    terminal.wait_for(r"> two.*moody ▸")
    assert "> sleep" not in terminal.screen


def test_thoughts_are_shown_in_the_waiting_line(chat: Chat) -> None:
    terminal = chat("moody")
    terminal.type("wonder\r")
    terminal.wait_for(r"  (Is it a long one\? )+[^\r\n]{1,20}… \(Ctrl-C cancels\)")
    terminal.type("\x03")
    terminal.wait_for(r"\(taken back\).*moody ▸")


def test_an_empty_answer_is_reported(chat: Chat) -> None:
    terminal = chat("moody")
    terminal.type("hush\r")
    terminal.wait_for(r"\(moody ended its turn without an answer\)\r\n.*moody ▸")


def test_an_offered_answer_is_chosen_by_its_number(chat: Chat) -> None:
    terminal = chat("moody")
    terminal.type("2\r")
    terminal.wait_for("You said 2 ")
    terminal.type("choose\r")
    terminal.wait_for(r"  Which colour\?\r\n  1 red, 2 light green")
    terminal.type("2\r")
    terminal.wait_for("You said light green ")
    terminal.type("2\r")
    terminal.wait_for(r"You said 2 \(light green before")


def test_input_during_an_answer_is_not_lost(chat: Chat) -> None:
    terminal = chat("moody")
    terminal.type("dawdle\r")
    terminal.wait_for("waiting for moody…")
    terminal.type("helo\x7flo\r")
    terminal.wait_for("at last.*You said hello ")
    assert "helo" not in terminal.screen
    terminal.type("dawdle\r")
    terminal.wait_for("waiting for moody…")
    terminal.type("\x04")  # Ctrl-D leaves as soon as the answer is there
    terminal.wait_for("at last")
    assert terminal.process.wait(TIMEOUT_S) == 0


def test_the_commands_of_the_agent_are_obeyed_and_completed(chat: Chat) -> None:
    terminal = chat("echo")
    terminal.type("hello\r")
    terminal.wait_for("  hello\r\n.*echo ▸")
    terminal.type("/status\r")
    terminal.wait_for(r"This conversation is active: \d+ of 100.*echo ▸")
    terminal.type("/hist\t 1\r")
    terminal.wait_for(r"> hello.*hello.*echo ▸")
    terminal.type("//status\r")
    terminal.wait_for(r"  /status\r\n.*echo ▸")
    terminal.type("/dance\r")
    terminal.wait_for("There is no such command")


def test_alt_enter_begins_a_new_line(chat: Chat) -> None:
    terminal = chat("echo")
    terminal.type("one\x1b\rtwo\r")
    terminal.wait_for("  one\r\n  two\r\n.*echo ▸")


@pytest.mark.parametrize("ending", [signal.SIGHUP, signal.SIGTERM])
def test_a_chat_that_gets_a_signal_logs_out_before_it_ends(chat: Chat, ending: signal.Signals) -> None:
    before = signal.signal(ending, signal.SIG_DFL)  # a signal that is ignored here, as under nohup, is ignored there too
    try:
        terminal = chat("echo")
    finally:
        signal.signal(ending, before)
    terminal.process.send_signal(ending)
    assert terminal.process.wait(TIMEOUT_S) == 130  # the signal alone would end it with another code


def test_a_chat_without_a_terminal_logs_out_at_sigterm(platform: RunningCommand) -> None:
    command, environment = [sys.executable, "-m", "spade_coreason", "chat", "echo"], clean_environment()
    with WarmProcess[str](
        command, cwd=platform.cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == "hello\n"
        process.terminate()  # while it waits for the next line
        assert process.wait(TIMEOUT_S) == 130


def test_the_password_of_another_account_is_asked_for_and_not_shown(platform: RunningCommand) -> None:
    run = json.loads((platform.cwd / "data" / "run.json").read_text())
    connection_options = ("--host", run["host"], "--port", str(run["port"]), "--ca-file", run["ca_file"])
    guest = run["guest"]
    with closing(
        Terminal("ask", "echo@localhost", "hello there", "--jid", guest["jid"], *connection_options, cwd=platform.cwd)
    ) as terminal:
        terminal.wait_for(f"Password of {guest['jid']}: ")
        terminal.type(f"{guest['password']}\r")
        terminal.wait_for("hello there\r\n")
        assert terminal.process.wait(TIMEOUT_S) == 0
        assert guest["password"] not in terminal.screen
