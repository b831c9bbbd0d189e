"""`webhooks`: what a person and a script see of them. The secret is printed once, alone for a script."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import ECHO, NOTES, Invoke
from tests.support.terminal import Terminal

SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{43}=\n")


def test_a_script_gets_the_secret_and_nothing_else(project: Invoke) -> None:
    created = project("webhooks", "create", "ci", "notes")
    assert created.exit_code == 0
    assert f"{NOTES} is behind no door for this: add `web: {{}}`, and `doors: [webhook]` for it" in created.stderr
    assert SECRET.fullmatch(created.stdout)
    rotated = project("webhooks", "rotate", "ci", "--keep", "2h")
    assert SECRET.fullmatch(rotated.stdout)
    assert created.stdout != rotated.stdout
    of_github = project("webhooks", "create", "repo", ECHO, "--kind", "github")
    assert re.fullmatch(r"[0-9a-f]{64}\n", of_github.stdout)


def test_a_person_sees_what_the_secret_is_for(project: Invoke, tmp_path: Path) -> None:
    terminal = Terminal("webhooks", "create", "ci", "notes", cwd=tmp_path, columns=200)
    assert terminal.wait_for_end() == 0
    screen = terminal.screen.replace("\r", "")
    assert SECRET.match(screen)
    assert f"the secret of the webhook ci for {NOTES}. It is shown this once." in screen
    assert "http://127.0.0.1:8080/webhooks/ci" in screen
    assert "add `web: {}`, and `doors: [webhook]` for it" in screen


def test_a_secret_that_the_sender_has_made_is_taken_from_a_file_or_standard_input(project: Invoke, tmp_path: Path) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    (tmp_path / "secret.txt").write_text(f"{secret}\n")
    assert project("webhooks", "create", "ci", "notes", "--secret-file", "secret.txt").stdout == f"{secret}\n"
    for name, content in (("short", "whsec_c2hvcnQ="), ("empty", "")):
        (tmp_path / name).write_text(content)
        wrong = project("webhooks", "create", "other", "notes", "--secret-file", name)
        assert wrong.exit_code == 2
        assert "--secret-file" in wrong.stderr
    missing = project("webhooks", "create", "other", "notes", "--secret-file", "nowhere")
    assert (missing.exit_code, "nowhere cannot be read" in missing.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["Upper", "notes"], "cannot be the name of a webhook"),
        (["answers", "notes"], "cannot be the name of a webhook"),
        (["-x", "notes"], ""),
        (["ci", "nobody"], 'there is no agent "nobody"'),
        (["ci", "nobody@localhost"], 'there is no agent "nobody@localhost"'),
        (["ci", "notes", "--thread", ""], "1 to 200 characters"),
        (["ci", "notes", "--kind", "gitlab"], "gitlab"),
    ],
)
def test_a_webhook_that_cannot_be_is_an_error(project: Invoke, arguments: list[str], problem: str) -> None:
    result = project("webhooks", "create", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert project("webhooks", "list", "--json").stdout.strip() == "[]"


def test_a_list_shows_each_webhook_and_no_secret(project: Invoke) -> None:
    assert project("webhooks", "list").stdout == "No webhooks: nothing is stored in data yet.\n"
    secrets = [project("webhooks", "create", "ci", "notes", "--thread", "builds").stdout.strip()]
    secrets += [project("webhooks", "create", "repo", ECHO, "--kind", "github").stdout.strip()]
    assert project("webhooks", "revoke", "ci").stdout == "The webhook ci is revoked.\n"
    assert project("webhooks", "rotate", "ci").exit_code == 2
    assert project("webhooks", "create", "ci", "notes").exit_code == 2
    listed = project("webhooks", "list")
    head, ci, repo = (re.split(r"\s{2,}", line.strip()) for line in listed.stdout.splitlines())
    assert head == ["NAME", "AGENT", "KIND", "THREAD", "BODIES", "SECRET OF", "STATE"]
    assert (ci[:4], ci[-1]) == (["ci", NOTES, "standard", "builds"], "revoked")
    assert (repo[:4], repo[-1]) == (["repo", ECHO, "github", "0 of 50,000"], "live")
    dumped = project("webhooks", "list", "--json").stdout
    assert [webhook["address"] for webhook in json.loads(dumped)] == ["hook-ci@callers.invalid", "hook-repo@callers.invalid"]
    assert not any(secret in dumped + listed.stdout for secret in secrets)
