"""`approvals`: the calls that agents want approved, on a running platform and on stored data."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from spade_coreason.storage import AgentRepository, open_database
from tests.cli.conftest import Invoke
from tests.support.databases import SQLITE, execute
from tests.support.stored_questions import APPROVAL, store_approval

AGENT, ALICE, BOSS = "refunds@localhost", "alice@localhost", "boss@localhost"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    data_dir = tmp_path / "data"

    async def fill() -> None:
        database = await open_database(f"{SQLITE}{data_dir / 'platform.db'}", "off")
        await store_approval(AgentRepository(database, AGENT), ALICE, BOSS)
        await database.close()

    asyncio.run(fill())
    (data_dir / "accounts.json").write_text(json.dumps({AGENT: "x"}))
    return data_dir


def test_the_open_approvals_are_listed_with_their_whole_calls_and_without_their_codes(data_dir: Path, invoke: Invoke) -> None:
    listed = invoke("approvals", "list")
    assert listed.exit_code == 0, listed.output
    for text in (APPROVAL[:8], AGENT, ALICE, BOSS, 'pay(["a secret"])', "until "):
        assert text in listed.stdout
    [one] = json.loads(invoke("approvals", "list", "--json").stdout)
    assert (one["id"], one["people"], one["state"], one["requester"]) == (APPROVAL, [BOSS], "open", ALICE)
    assert "K7QX2M" not in listed.stdout + json.dumps(one)
    assert invoke("approvals", "list", "--state", "denied").stdout == "No denied approvals.\n"
    assert invoke("approvals", "list", "--agent", "other@localhost").stdout == "No open approvals.\n"


def test_an_approval_of_any_state_is_shown_with_the_lines_that_its_approver_sees(data_dir: Path, invoke: Invoke) -> None:
    call = 'transfer\npurpose:\n"order א 20"\n"order \\u05d0 20"\namount:\n"1000"'
    execute(f"{SQLITE}{data_dir / 'platform.db'}", f"UPDATE questions SET text = '{call}'")  # as describe_call writes it
    first, *lines = invoke("approvals", "show", APPROVAL[:8]).stdout.splitlines()
    assert first.startswith(f"{APPROVAL[:8]} until ")
    assert first.endswith(f", {AGENT} asked {BOSS} for {ALICE}:")
    assert lines == [f"  {line}" for line in call.splitlines()]
    assert json.loads(invoke("approvals", "show", APPROVAL, "--json").stdout)["call"] == call
    assert invoke("approvals", "deny", APPROVAL).exit_code == 0
    assert invoke("approvals", "show", APPROVAL[:8]).stdout.startswith(f"{APPROVAL[:8]} denied user ")
    missing = invoke("approvals", "show", "00000000")
    assert missing.exit_code == 2
    assert "there is no approval 00000000; `approvals list --state any` shows them" in missing.stderr


@pytest.mark.parametrize(("verb", "state", "done"), [("approve", "approved", "Approved"), ("deny", "denied", "Denied")])
def test_the_user_of_the_machine_decides_once_and_the_trail_names_them(
    verb: str, state: str, done: str, data_dir: Path, invoke: Invoke
) -> None:
    decided = invoke("approvals", verb, APPROVAL[:8], "--reason", "checked")
    assert (decided.exit_code, decided.stdout) == (0, f'{done} for {ALICE}:\n  pay(["a secret"])\n'), decided.output
    assert state in invoke("approvals", "list", "--state", state).stdout
    again = invoke("approvals", "approve", APPROVAL)
    assert again.exit_code == 2
    assert f"it is {state} already by user " in again.stderr
    trail = json.loads(invoke("audit", "list", "--agent", AGENT, "--json").stdout)
    assert [entry["action"] for entry in trail] == [f"approvals.{verb}"]
    assert "a secret" not in str(trail)


@pytest.mark.parametrize(
    ("ident", "problem"),
    [("5b2b", "ID: '5b2b' has 4 characters; give the first 8"), ("00000000", "there is no approval 00000000; `approvals list")],
)
def test_a_wrong_id_is_explained(ident: str, problem: str, data_dir: Path, invoke: Invoke) -> None:
    wrong = invoke("approvals", "approve", ident)
    assert wrong.exit_code == 2
    assert problem in wrong.stderr


def test_a_shell_completes_open_approvals(data_dir: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_SPADE_COREASON_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", f"spade-coreason {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
        found = invoke().stdout.splitlines()
        monkeypatch.delenv("_SPADE_COREASON_COMPLETE")
        return [word.partition(",")[2] for word in found if word]

    assert complete("approvals approve 5b") == complete("approvals deny ") == [APPROVAL]
    assert invoke("approvals", "deny", APPROVAL).exit_code == 0
    assert complete("approvals approve 5b") == []


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_beside_a_platform_that_does_not_run_no_decision_counts_after_its_time(
    verb: str, data_dir: Path, invoke: Invoke
) -> None:
    execute(f"{SQLITE}{data_dir / 'platform.db'}", "UPDATE questions SET expires_at = 1")
    late = invoke("approvals", verb, APPROVAL)
    assert late.exit_code == 2
    assert "it is expired already; nothing was changed" in late.stderr
    assert len(json.loads(invoke("approvals", "list", "--json").stdout)) == 1  # until its agent runs


def test_reassign_needs_a_running_platform(data_dir: Path, invoke: Invoke) -> None:
    asked = invoke("approvals", "reassign", APPROVAL)
    assert asked.exit_code != 0
    assert "no platform is running on data; start one (`spade-coreason up`)" in asked.stderr
