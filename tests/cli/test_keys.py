"""`keys`: what a person and a script see of them. The secret is printed once, alone for a script."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spade_coreason.domain.callers import caller_address
from spade_coreason.doors.caller import Caller
from tests.cli.conftest import ECHO, NOTES, Invoke
from tests.support.program import RunningCommand
from tests.support.terminal import Terminal

SECRET = re.compile(r"sc_[A-Za-z0-9_-]{43}\n")


def test_a_script_gets_the_secret_and_nothing_else(project: Invoke) -> None:
    created = project("keys", "create", "website", "--agent", "notes", "--agent", ECHO)
    assert created.exit_code == 0
    assert SECRET.fullmatch(created.stdout)
    for agent in (NOTES, ECHO):
        remedy = "add `web: {}`, and `doors: [openai]` for it to the configuration"
        assert f"{agent} is behind no door for this: {remedy}" in created.stderr
    rotated = project("keys", "rotate", "website", "--keep", "2h")
    assert rotated.exit_code == 0
    assert SECRET.fullmatch(rotated.stdout)
    assert created.stdout != rotated.stdout


@pytest.mark.parametrize("web", [None, {"port": 8123}])
def test_a_person_sees_what_the_secret_is_for_and_how_to_try_it(
    web: dict[str, int] | None, project: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "config" / "platform.yaml"
    file.write_text(json.dumps({**json.loads(file.read_text()), **({} if web is None else {"web": web})}))
    terminal = Terminal("keys", "create", "website", "--agent", "notes", "--expires", "never", cwd=tmp_path, columns=200)
    assert terminal.wait_for_end() == 0
    screen = terminal.screen.replace("\r", "")
    secret = screen.partition("\n")[0]
    assert SECRET.fullmatch(f"{secret}\n")
    assert f"the secret of the key website for {NOTES}. It is shown this once, and never ends." in screen
    port = 8080 if web is None else 8123
    assert f'curl http://127.0.0.1:{port}/v1/models -H "Authorization: Bearer {secret}"' in screen
    assert ("add `web: {}`, and `doors: [openai]`" in screen) == (web is None)
    assert "`doors: [openai]` for it" in screen


def test_the_address_of_a_person_below_a_key_is_that_of_their_requests(project: Invoke) -> None:
    caller = Caller("webui", caller_address("webui"), "", frozenset(), names_users=True)
    shown = project("keys", "person", "webui", "ada@example.org")
    assert (shown.exit_code, shown.stdout) == (0, f"{caller.for_user('ada@example.org').address}\n")


def test_a_list_shows_each_key_and_no_secret(project: Invoke) -> None:
    assert project("keys", "list").stdout == "No keys: nothing is stored in data yet.\n"
    secrets = [
        project("keys", "create", *arguments).stdout.strip()
        for arguments in (
            ["website", "--agent", "notes"],
            ["editor", "--agent", ECHO, "--agent", "notes", "--jid", "carol@example.com", "--expires", "never"],
            ["chats", "--agent", "notes", "--users-by-header", "--expires", "12h"],
        )
    ]
    assert project("access", "reject", "carol@example.com", "--agent", "notes").exit_code == 0
    assert project("keys", "revoke", "website").stdout == "The key website is revoked.\n"
    listed = project("keys", "list")
    head, chats, editor, website = (re.split(r"\s{2,}", line) for line in listed.stdout.splitlines())
    assert head == ["NAME", "AGENTS", "FOR", "CREATED", "EXPIRES", "LAST USED", "STATE"]
    assert (chats[:3], chats[5:]) == (["chats", NOTES, "people of a front end"], ["never", "live"])
    assert (editor[:3], editor[4:]) == (
        ["editor", f"{ECHO}, {NOTES} (rejected)", "carol@example.com"],
        ["never", "never", "live"],
    )
    assert (website[:3], website[-1]) == (["website", NOTES, "itself"], "revoked")
    dumped = project("keys", "list", "--json").stdout
    keys = {key["name"]: key for key in json.loads(dumped)}
    assert (keys["editor"]["agents"], keys["editor"]["withdrawn"], keys["editor"]["expires_at"]) == ([ECHO], [NOTES], None)
    assert keys["chats"]["users_by_header"]
    assert not any(secret[:11] in listed.stdout + dumped for secret in secrets)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["create", "website", "--agent", "nobody"], f'--agent: there is no agent "nobody"; the agents are {NOTES}, {ECHO}'),
        (["create", "Web", "--agent", "notes"], "NAME: 'Web' cannot be the name of a key"),
        (["create", "web", "--agent", "notes", "--jid", "carol"], "--jid: 'carol' is not a JID"),
        (["create", "web", "--agent", "notes", "--jid", "a@callers.invalid"], "--jid: "),
        (
            ["create", "web", "--agent", "notes", "--jid", "a@b.example", "--users-by-header"],
            "--users-by-header: a key for one",
        ),
        (
            ["create", "web", "--agent", "notes", "--expires", "soon"],
            '--expires: \'soon\' is no duration; write it as "30m", "12h"',
        ),
        (["create", "web", "--agent", "notes", "--expires", "0d"], "--expires: '0d' is no duration"),
        (["create", "web", "--agent", "notes", "--expires", "9999d"], "--expires: 9999d is too long; the most is 3660d"),
        (["rotate", "taken", "--keep", "31d"], "--keep: 31d is too long; the most is 30d"),
        (["rotate", "nothing"], "NAME: there is no key 'nothing'; `spade-coreason keys list` shows all"),
        (["revoke", "nothing"], "NAME: there is no key 'nothing'"),
        (["create", "taken", "--agent", "notes"], "NAME: taken is, or was, the name of another key"),
    ],
)
def test_what_is_wrong_is_explained_at_its_option(arguments: list[str], problem: str, project: Invoke) -> None:
    assert project("keys", "create", "taken", "--agent", "notes").exit_code == 0
    wrong = project("keys", *arguments)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert problem in wrong.stderr
    assert [key["name"] for key in json.loads(project("keys", "list", "--json").stdout)] == ["taken"]


def test_a_shell_completes_the_names_of_keys_that_are_not_revoked(project: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("website", "web-2", "editor"):
        assert project("keys", "create", name, "--agent", "notes").exit_code == 0
    assert project("keys", "revoke", "web-2").exit_code == 0

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_SPADE_COREASON_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", f"spade-coreason {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
        found = project().stdout.splitlines()
        monkeypatch.delenv("_SPADE_COREASON_COMPLETE")
        return [word.partition(",")[2] for word in found if word]

    assert complete("keys revoke we") == ["website"]
    assert complete("keys rotate ") == ["editor", "website"]


def test_a_running_platform_makes_lists_and_revokes_keys(platform: RunningCommand, invoke_beside_platform: Invoke) -> None:
    created = invoke_beside_platform("keys", "create", "beside", "--agent", "notes", "--jid", "carol@example.org")
    assert SECRET.fullmatch(created.stdout), created.output
    [key] = [key for key in json.loads(invoke_beside_platform("keys", "list", "--json").stdout) if key["name"] == "beside"]
    assert (key["account"], key["state"]) == ("carol@example.org", "live")
    trail = json.loads(invoke_beside_platform("audit", "list", "--agent", "notes", "--json").stdout)
    assert ("keys.create", "key beside") in [(entry["action"], entry["resource"]) for entry in trail]
    assert SECRET.fullmatch(invoke_beside_platform("keys", "rotate", "beside").stdout)
    assert invoke_beside_platform("keys", "revoke", "beside").stdout == "The key beside is revoked.\n"
    assert invoke_beside_platform("keys", "create", "beside", "--agent", "notes").exit_code == 2
    assert created.stdout.strip()[:11] not in platform.output
