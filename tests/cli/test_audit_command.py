"""`audit` lists what agents did, and verifies that the record of it is complete."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from spade_coreason.contracts import AuditEntry
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.lock import lock_directory
from spade_coreason.storage.repository import AgentRepository
from tests.cli.conftest import Invoke
from tests.support.databases import SQLITE, execute
from tests.support.records import AGENT, ALICE


def fill_audit_trail(url: str, count: int) -> list[AuditEntry]:
    async def append_entries() -> list[AuditEntry]:
        database = await open_database(url, "off")
        trail = AgentRepository(database, AGENT).audit_trail
        records = [AuditEntry(actor=AGENT, action="tool.call", resource=f"tool {n}", outcome="success") for n in range(count)]
        sealed = [await trail.append(record, ALICE) for record in records]
        await database.close()
        return sealed

    return asyncio.run(append_entries())


def test_the_audit_trail_is_listed_and_verified_beside_a_running_platform(tmp_path: Path, invoke: Invoke) -> None:
    url = f"{SQLITE}{tmp_path}/data/platform.db"
    options = ("--data", str(tmp_path / "data"), "--agent", AGENT)
    (tmp_path / "data").mkdir()
    for action in ("list", "verify"):
        assert invoke("audit", action, *options).stdout == "No audit entries: nothing is stored in data yet.\n"
    sealed = fill_audit_trail(url, 3)
    with lock_directory(tmp_path / "data"):
        head, *lines = invoke("audit", "list", *options, "--limit", "2").stdout.splitlines()
        assert head.split() == ["AGENT", "NUMBER", "WHEN", "ACTOR", "ACTION", "RESOURCE", "OUTCOME", "PERSON"]
        assert [line.split()[-6:] for line in lines] == [
            [AGENT, "tool.call", "tool", str(number), "success", ALICE] for number in (1, 2)
        ]
        listed = json.loads(invoke("audit", "list", *options, "--json").stdout)
        assert [
            AuditEntry.model_validate({k: v for k, v in one.items() if k in AuditEntry.model_fields}) for one in listed
        ] == sealed
        assert [(one["agent"], one["number"], one["person"]) for one in listed] == [(AGENT, n, ALICE) for n in (1, 2, 3)]
        good = invoke("audit", "verify", *options, "--through", sealed[0].integrity_hash)
    assert (good.exit_code, good.stdout) == (0, f"✓ {AGENT}: 3 entries; hash of the last {sealed[-1].integrity_hash}\n")


def test_a_damaged_trail_is_reported_with_exit_code_1(tmp_path: Path, invoke: Invoke) -> None:
    url = f"{SQLITE}{tmp_path}/data/platform.db"
    options = ("--data", str(tmp_path / "data"), "--agent", AGENT)
    (tmp_path / "data").mkdir()
    fill_audit_trail(url, 3)
    execute(url, "UPDATE audit SET entry = NULL, person = '' WHERE number = 1")
    execute(url, "UPDATE audit SET entry = '{}' WHERE number = 2")
    bad = invoke("audit", "verify", *options)
    assert bad.exit_code == 1
    assert bad.stdout.startswith(f"✗ {AGENT}: 3 entries, 1 of them forgotten; hash of the last ")
    assert bad.stdout.splitlines()[1:] == ["    entry 2 was changed"]
    found = json.loads(invoke("audit", "verify", *options, "--json").stdout)[AGENT]
    assert (found["ok"], found["problems"]) == (False, ["entry 2 was changed"])
    assert [line.split()[1:3] for line in invoke("audit", "list", *options).stdout.splitlines()[1:2]] == [["1", "forgotten"]]
    assert invoke("audit", "list", *options, "--json").exit_code == 0
    elsewhere = invoke("audit", "verify", *options, "--through", "5f1c")
    assert (elsewhere.exit_code, elsewhere.stdout.splitlines()[-1]) == (1, "    no entry has the hash 5f1c")
    agents = ", ".join(f"{{jid: {jid}, agent: 'a:B', password: x}}" for jid in (AGENT, "echo@localhost"))
    (tmp_path / "two.yaml").write_text(f"data_dir: {tmp_path}/data\nagents: [{agents}]")
    ambiguous = invoke("audit", "verify", "-c", "two.yaml", "--through", "5f1c")
    assert (ambiguous.exit_code, "--agent: is missing" in ambiguous.stderr) == (2, True), ambiguous.output
