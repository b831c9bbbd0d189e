"""`incident`: the exception behind an incident that a person was told of, beside a running platform and after it."""

from __future__ import annotations

import asyncio
import getpass
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spade_coreason.domain.texts.error_chain import describe_error_chain
from spade_coreason.storage import open_database
from spade_coreason.storage.repository import AgentRepository
from tests.cli.conftest import Invoke
from tests.support.databases import SQLITE
from tests.support.program import RunningCommand, run_command, run_in_background, write_project
from tests.support.records import ALICE, NOW
from tests.support.servers.postgres import Postgres

USER = f"user {getpass.getuser()}"
SECRET = "a secret of the person"
MOODY = "moody@localhost"


@contextmanager
def run_platform(project: Path) -> Iterator[RunningCommand]:
    with run_in_background("up", cwd=project, until=r"^Ready", errors=[f"{MOODY}: incident"]) as up:
        yield up


def provoke(up: RunningCommand) -> str:
    """Make the agent raise, and return the number that the person is told."""
    told = re.search(r"\(incident ([0-9a-f]{8})\)", up.run_command("ask", MOODY, "raise").stderr)
    assert told is not None
    return told[1]


def audited(invoke: Invoke) -> list[tuple[str, str, str]]:
    entries = json.loads(invoke("audit", "list", "--agent", "moody", "--json").stdout)
    return [(entry["actor"], entry["action"], entry["resource"]) for entry in entries]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.release)])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    directory = write_project(tmp_path / "project", "auto")
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        assert isinstance(server, Postgres)
        file = directory / "config" / "platform.yaml"
        file.write_text(json.dumps({**json.loads(file.read_text()), "storage": {"url": server.url()}}))
    return directory


def test_an_incident_is_shown_beside_the_platform_and_after_it(
    project: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)

    def show(*arguments: str) -> str:
        shown = invoke("incident", *arguments)
        assert (shown.exit_code, shown.stderr) == (0, "")
        return shown.stdout

    def check_without_text(number: str) -> None:
        for arguments in ([number], [f" Incident {number.upper()} "], ["incident", f"{number}."]):
            head, *traceback = show(*arguments).splitlines()
            pattern = rf"incident {number}: {MOODY}, \d+-\d+-\d+ \d+:\d+, with guest@localhost, conversation \S+"
            assert re.fullmatch(pattern, head)
            assert traceback[0] == "Traceback (most recent call last):"
            assert re.fullmatch(rf'  File "{project}/moody\.py", line \d+, in MoodyAgent\.assist', traceback[1])
            assert traceback[2:] == ["ValueError"]
        columns, *rows = show().splitlines()
        assert columns.split() == ["ID", "AGENT", "TIME", "TYPE", "PLACE"]
        assert any(re.fullmatch(rf"{number} +{MOODY} +\S+ \S+ +ValueError +moody\.py:\d+", row) for row in rows)
        record = json.loads(show(number, "--json"))
        assert (record["id"], record["agent_id"], record["person"]) == (number, MOODY, "guest@localhost")
        [error] = record["errors"]
        assert "message" not in error
        assert (error["type"], error["frames"][-1]["function"]) == ("ValueError", "MoodyAgent.assist")
        for arguments in ([number], [number, "--json"], [], ["--json"]):
            assert SECRET not in show(*arguments)

    with run_platform(project) as up:
        number = provoke(up)
        check_without_text(number)
        assert audited(invoke) == []
        assert show(number, "--message").endswith(f", in MoodyAgent.assist\nValueError: {SECRET}\n")
        assert audited(invoke) == [(USER, "incidents.messages", f"incident {number}")]
        _, _, err = up.stop()
        [line] = [line for line in err.splitlines() if "incident" in line]
        assert re.fullmatch(
            rf"error: {MOODY}: incident {number}: ValueError \(moody\.py:\d+\); spade-coreason incident {number} shows more",
            line,
        )
        assert SECRET not in err
    check_without_text(number)
    assert json.loads(show(number, "--message", "--json"))["errors"][0]["message"] == SECRET
    assert audited(invoke) == [(USER, "incidents.messages", f"incident {number}")] * 2
    with run_platform(project) as up:
        check_without_text(number)
        another = provoke(up)
        assert [record["id"] for record in json.loads(show("--json"))] == [another, number]
    cleared = invoke("sessions", "clear", "--agent", "moody", "--person", "guest@localhost", "--yes")
    assert "the record of 2 audited steps, the record of 2 failures" in cleared.stdout
    gone = invoke("incident", number)
    assert (gone.exit_code, gone.stdout) == (2, "")
    assert show() == "No incidents.\n"


def test_an_unknown_number_is_one_line(tmp_path: Path, invoke: Invoke) -> None:
    def check(*arguments: str) -> None:
        refused = invoke("incident", *arguments)
        assert refused.exit_code == 2
        assert refused.stdout == ""
        said = f'error: ID: there is no incident "{" ".join(arguments)}"; `incident` shows them\n'
        assert refused.stderr == said

    check("1f2e3d4c")
    assert invoke("incident").stdout == "No incidents: nothing is stored in data yet.\n"
    run(tmp_path, lambda repository: None)
    check("1f2e3d4c")
    check("incident", "number", "one")
    assert invoke("incident").stdout == "No incidents.\n"
    refused = invoke("incident", "--message")
    assert refused.exit_code == 2
    assert refused.stderr == "error: --message: needs the number of an incident: spade-coreason incident ID --message\n"


def run(directory: Path, work: Callable[[AgentRepository], object]) -> None:
    """Create a database in the data directory, and do something with the repository of an agent."""

    async def open_and_work() -> None:
        database = await open_database(f"{SQLITE}{directory}/data/platform.db", "off")
        work(AgentRepository(database, MOODY))
        await database.close()

    asyncio.run(open_and_work())


def test_completion_has_the_numbers_of_incidents(tmp_path: Path, invoke: Invoke) -> None:
    def record(repository: AgentRepository) -> None:
        for number in ("11111111", "12222222", "21111111"):
            repository.incidents.record(number, ALICE, None, NOW, describe_error_chain(ValueError()))

    run(tmp_path, record)
    environment = {"_SPADE_COREASON_COMPLETE": "bash_complete", "COMP_WORDS": "spade-coreason incident 1", "COMP_CWORD": "2"}
    completed = run_command(cwd=tmp_path, env=environment)
    assert completed.stdout.split() == ["plain,12222222", "plain,11111111"]
