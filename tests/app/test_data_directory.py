"""The data directory of a platform: links of others are not followed, and a directory that others can write is reported."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

import pytest

from spade_coreason import AgentInteractionMemory
from spade_coreason.exceptions import StoreError
from tests.support.program import run_command, run_in_background, write_project

REFUSED = ["lock", "running.bin", "blocked.txt", "platform.db.lock", "server/embedded/embedded.log"]
REPLACED = [
    "run.json",
    "run.json.part",
    "accounts.json.part",
    "people.json.part",
    "platform.sock",
    "server/embedded/ports.json",
    "server/embedded/certs/ca.pem",
    "server/embedded/certs/localhost_key.pem",
    "server/embedded/certs/localhost_key.pem.part",
]

STORES = {
    "platform.db": "`people delete` erases it (tests/storage/test_table_purposes.py), and a backup has it",
    "platform.db-wal": "its log: it is truncated after an erasure",
    "platform.db-shm": "the index of that log",
    "memory/*.json": "an erasure and a retention delete from it, an export and a backup have it",
    "memory/*.json.journal": "its later additions: it goes with a deletion from the file",
    "*lock": "empty",
    "run.json": "the addresses of the platform and its agents, and the account of the guest",
    "accounts.json": "the accounts of the agents and the guest on the server of the platform",
    "people.json": "the accounts of further people (`server.people`) on the server of the platform",
    "running.bin": "numbers of rows of the turns that run",
    "blocked.txt": "the place in the code that blocks the event loop",
    "platform.sock": "a socket",
    "server/*": "the server's own: the pages name it as what a deletion does not reach",
}
"""What each file of a data directory is for the deletion of a person."""

EMBEDDED_NOTICE = (
    "warning: embedded server, for demonstrations only: senders can be forged, and stored messages are lost when the server"
    " stops\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = write_project(tmp_path / "project", "embedded")
    (project / "data").mkdir(0o700)
    return project


def link_to_victim(project: Path, name: str) -> Path:
    """Put a link in the place of a file of the data directory, and return its target."""
    victim, link = project.parent / "victim", project / "data" / name
    victim.write_text("precious")
    victim.chmod(0o640)
    link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    link.symlink_to(victim)
    return victim


@pytest.mark.parametrize("name", REFUSED)
def test_a_start_follows_no_link_and_says_how_to_remove_it(project: Path, name: str) -> None:
    victim = link_to_victim(project, name)
    refused = run_command("up", cwd=project)
    assert refused.returncode != 0
    assert "is a symbolic link" in refused.stderr
    assert f"rm {project / 'data' / name}" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("precious", 0o640)


@pytest.mark.parametrize("mode", ["embedded", "auto"])
def test_every_file_of_a_platform_has_its_purpose_for_the_deletion_of_a_person(tmp_path: Path, mode: str) -> None:
    """A new file needs a line in `STORES`, which says what becomes of it."""
    project = write_project(tmp_path / "project", mode)
    with run_in_background("up", cwd=project, until=r"^Ready", may_log=["embedded server"]) as up:
        assert up.run_command("ask", "notes", "my plane leaves on Friday").returncode == 0
        data = project / "data"
        names = {str(path.relative_to(data)) for path in data.rglob("*") if not path.is_dir()}
        up.stop()
    assert {"platform.db", "platform.db-wal", "memory/notes@localhost.json.journal", "run.json"} < names
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in STORES)] == []


def test_files_that_are_written_as_a_whole_replace_a_link(project: Path) -> None:
    [victim] = {link_to_victim(project, name) for name in REPLACED}
    with run_in_background("up", cwd=project, until=r"^Ready") as up:
        assert up.run_command("ask", "echo", "hello").stdout == "hello\n"
        assert [name for name in REPLACED if (project / "data" / name).is_symlink()] == []
        up.stop()
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("precious", 0o640)


def test_a_data_directory_that_is_a_link_is_ordinary(project: Path) -> None:
    (project / "data").rmdir()
    (project.parent / "disk").mkdir(0o700)
    (project / "data").symlink_to(project.parent / "disk")
    with run_in_background("up", cwd=project, until=r"^Ready") as up:
        assert up.run_command("ask", "echo", "hello").stdout == "hello\n"
        _, _, log = up.stop()
    assert log == EMBEDDED_NOTICE


def test_a_data_directory_that_others_can_write_is_reported_with_its_remedy(project: Path) -> None:
    (project / "data").chmod(0o777)
    with run_in_background("up", cwd=project, until=r"^Ready") as up:
        checked = up.run_command("check", "--json")
        _, _, log = up.stop()
    who = "every user of this machine can write this directory, and so replace the stored data"
    problem = f"{project / 'data'}: {who}; run: chmod o-w {project / 'data'}"
    assert log == f"warning: {problem}\n{EMBEDDED_NOTICE}"
    assert {"what": "data directory", "verdict": "note", "text": problem} in json.loads(checked.stdout)["findings"]


@pytest.mark.parametrize("part", ["", ".journal", ".lock"])
def test_an_interaction_memory_writes_to_no_link(tmp_path: Path, part: str) -> None:
    AgentInteractionMemory("notes@localhost", tmp_path).add_information("t", "first")
    [journal] = tmp_path.glob("*.journal")
    file, victim = journal.with_name(journal.name.removesuffix(".journal") + part), tmp_path / "victim"
    file.unlink(missing_ok=True)
    victim.write_text("")
    file.symlink_to(victim)
    with pytest.raises(StoreError):
        AgentInteractionMemory("notes@localhost", tmp_path).add_information("t", "second")
    assert victim.read_text() == ""
