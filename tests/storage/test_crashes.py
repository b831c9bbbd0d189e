"""Requests that ran when the process died are counted, and fail only if they ended it alone."""

from __future__ import annotations

import asyncio
import mmap
import re
from datetime import timedelta
from pathlib import Path

import pytest

from spade_coreason.storage.backends.statements import RECEIVE, SET_CHANNEL
from spade_coreason.storage.crashes import (
    SPARE_SLOT,
    FailedRequestRows,
    RunningRequests,
    drop_failed_request,
    load_crashed,
    mark_alone,
    record_crash,
    record_lost_worker,
    restore_kept,
    retry_failed_request,
)
from spade_coreason.storage.records import to_micros
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.storage.schema import CrashedRequest
from tests.support.databases import RECEIVED, read_rows
from tests.support.records import AGENT, ALICE, NOW, new_conversation, receive_request


async def _crash(repository: AgentRepository, *rows: int) -> dict[int, CrashedRequest]:
    return {request.id: request for request in await record_crash(repository.database, rows, NOW)}


def test_what_ran_is_in_the_file_until_it_is_cleared(tmp_path: Path) -> None:
    path = tmp_path / "running.bin"
    running = RunningRequests(path)
    assert running.is_idle
    slot = running.free_slots.pop()
    assert slot != SPARE_SLOT
    running.slots[slot] = 2**40
    running.slots[SPARE_SLOT] = 7
    assert not running.is_idle
    after_death = RunningRequests(path)
    assert after_death.rows == {2**40}
    assert not after_death.is_stopping
    running.mark_stop()
    assert after_death.rows == {2**40}
    assert after_death.is_stopping
    after_death.clear()
    assert RunningRequests(path).rows == frozenset()
    assert not RunningRequests(path).is_stopping
    assert path.stat().st_mode & 0o777 == 0o600


def count_unwritten_kib(path: Path) -> int:
    """Return the KiB of a mapped file that a power cut would lose (proc_pid_smaps(5))."""
    _, *mappings = re.split(r"^[0-9a-f]+-[0-9a-f]+ ", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    [found] = [mapping for mapping in mappings if mapping.partition("\n")[0].endswith(f" {path}")]
    return sum(int(size) for size in re.findall(r"^(?:Private|Shared)_Dirty: +([0-9]+) kB", found, re.MULTILINE))


def shows_unwritten(directory: Path) -> bool:
    """Return True if the system shows what is not written yet, which it does not for a directory in memory."""
    path = directory / "probe"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 1
        before = count_unwritten_kib(path)
        mapped.flush()
        return before > count_unwritten_kib(path)


def test_a_power_cut_brings_back_nothing_that_was_cleared_and_keeps_what_ran_at_a_stop(tmp_path: Path) -> None:
    if not shows_unwritten(tmp_path):
        pytest.skip("the system does not show what is not written yet")
    path = tmp_path / "running.bin"
    running = RunningRequests(path)
    running.slots[1], running.holder[0] = 7, 7
    running.clear()
    assert count_unwritten_kib(path) == 0
    running.slots[1] = 7
    running.mark_stop()
    assert count_unwritten_kib(path) == mmap.PAGESIZE / 1024  # the mark, and not what ran


async def test_a_request_fails_at_the_third_crash_if_it_ran_alone(repository: AgentRepository) -> None:
    row = await receive_request(repository, request='{"q": 1}')
    crashed = [(await _crash(repository, row))[row] for _ in range(3)]
    assert [(request.crashes, request.is_suspect) for request in crashed] == [(1, False), (2, True), (3, False)]
    assert [request.failed_at for request in crashed] == [None, None, to_micros(NOW)]
    assert (crashed[2].agent, crashed[2].request) == (AGENT, '{"q": 1}')


async def test_a_request_fails_at_the_sixth_stop_that_cuts_it_off_alone(repository: AgentRepository) -> None:
    row = await receive_request(repository)
    for number in range(1, 7):
        [stopped] = await record_crash(repository.database, [row], NOW, is_stop=True)
        assert (stopped.crashes, stopped.stops, stopped.is_suspect) == (0, number, number == 5)
    assert (stopped.failed_at, stopped.has_crashed) == (to_micros(NOW), False)


async def test_a_stop_does_not_fail_a_request_that_crashes_made_a_suspect(repository: AgentRepository) -> None:
    row = await receive_request(repository)
    for _ in range(2):
        await _crash(repository, row)
    for _ in range(3):
        [stopped] = await record_crash(repository.database, [row], NOW, is_stop=True)
    assert (stopped.crashes, stopped.stops, stopped.failed_at) == (2, 3, None)
    assert (await _crash(repository, row))[row].has_crashed


async def test_a_request_that_blocked_the_event_loop_fails_at_once_and_the_others_are_not_counted(
    repository: AgentRepository,
) -> None:
    rows = [await receive_request(repository) for _ in range(3)]
    crashed = await record_crash(repository.database, rows, NOW, rows[1])
    assert [(request.id, request.crashes, request.failed_at) for request in crashed] == [(rows[1], 1, to_micros(NOW))]


async def test_a_block_without_a_turn_is_a_crash_of_all_that_ran(repository: AgentRepository) -> None:
    rows = [await receive_request(repository) for _ in range(2)]
    for blocking_row in (0, 4711):
        crashed = await record_crash(repository.database, rows, NOW, blocking_row)
        assert {request.failed_at for request in crashed} == {None}
    assert {request.crashes for request in crashed} == {2}


async def test_suspects_that_ran_together_do_not_fail(repository: AgentRepository) -> None:
    rows = [await receive_request(repository) for _ in range(2)]
    for number in range(5):
        crashed = await _crash(repository, *rows)
        assert [(r.crashes, r.failed_at) for r in crashed.values()] == [(number + 1, None)] * 2
    assert (await _crash(repository, rows[0]))[rows[0]].failed_at == to_micros(NOW)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_lost_worker_counts_for_what_may_have_run_and_not_for_what_waits_for_the_end_of_a_pause(
    repository: AgentRepository,
) -> None:
    row = await receive_request(repository)
    await repository.save_pause(True)
    await repository.database.write(lambda connection: record_lost_worker(connection, [AGENT], NOW))
    assert await load_crashed(repository.database, [AGENT]) == []
    await repository.save_pause(False)
    await repository.database.write(lambda connection: record_lost_worker(connection, [AGENT], NOW))
    assert [(found.id, found.crashes) for found in await load_crashed(repository.database, [AGENT])] == [(row, 1)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_request_that_ran_alone_when_its_worker_died_and_started_again_does_not_run_alone_any_more(
    repository: AgentRepository,
) -> None:
    database, row, other = repository.database, await receive_request(repository), await receive_request(repository)
    await _crash(repository, row)
    await mark_alone(database, row, True)
    await _crash(repository, row)
    await database.write(lambda connection: record_lost_worker(connection, [AGENT], NOW))
    assert [(found.id, found.crashes) for found in await load_crashed(database, [AGENT])] == [(row, 3), (other, 1)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_request_that_was_answered_before_its_worker_died_does_not_fail_in_place_of_what_ran(
    repository: AgentRepository,
) -> None:
    database, row, other = repository.database, await receive_request(repository), await receive_request(repository)
    await _crash(repository, row)
    await _crash(repository, row)
    await mark_alone(database, row, True)
    await repository.inbox.finish(row, new_conversation(repository), None, '["<message/>"]')
    await database.write(lambda connection: record_lost_worker(connection, [AGENT], NOW))
    assert await FailedRequestRows(database, AGENT).load_page() == []
    assert [(found.id, found.crashes) for found in await load_crashed(database, [AGENT])] == [(other, 1)]


async def test_a_request_that_was_answered_is_forgotten(repository: AgentRepository, database_url: str) -> None:
    row = await receive_request(repository)
    assert row in await _crash(repository, row)
    await repository.inbox.finish(row, new_conversation(repository), None, '["<message/>"]')
    assert await _crash(repository, row) == {}
    assert read_rows(database_url, "crashed_requests") == []


async def test_a_request_that_was_never_stored_is_not_counted(repository: AgentRepository) -> None:
    assert await _crash(repository, 4711) == {}


async def test_a_kept_request_is_restored_once_and_counted(
    repository: AgentRepository, database_url: str, tmp_path: Path
) -> None:
    key, running = b"k" * 16, RunningRequests(tmp_path / "running.bin")
    running.slots[1] = lost = repository.database.row_ids.next()
    values = (lost, AGENT, bytearray(key), ALICE, 5, RECEIVED, '{"secret": 1}', bytearray(), "")
    assert running.keep(1, [(RECEIVE, values), (SET_CHANNEL, (lost, "webhook"))])
    stored = await receive_request(repository)
    running.slots[2] = stored
    assert running.keep(2, [(RECEIVE, (stored, *values[1:]))])
    for _ in range(2):  # also if the process ends again before it has emptied the file
        await restore_kept(repository.database, RunningRequests(tmp_path / "running.bin").kept)
    rows = read_rows(database_url, "inbox")
    assert [row["channel"] for row in rows if row["id"] == lost] == ["webhook"]
    assert len(rows) == 2
    assert (await _crash(repository, lost))[lost].crashes == 1
    assert repository.inbox.may_have(key)  # what the sender sends again is a duplicate
    assert {request.inbox_row for request in await repository.inbox.load_pending()} == {lost, stored}


async def test_a_failed_request_stays_until_it_is_dropped_or_run_again(repository: AgentRepository, database_url: str) -> None:
    database = repository.database
    rows = [await receive_request(repository, request=f'{{"q": {n}}}') for n in range(2)]
    for row in rows:
        for _ in range(3):
            await _crash(repository, row)
        await repository.inbox.finish(row, new_conversation(repository, str(row)), None, None)
    assert await _crash(repository) == {}
    second, first = await FailedRequestRows(database, AGENT).load_page()
    assert await FailedRequestRows(database, "other@localhost").load_page() == []
    await drop_failed_request(database, first)
    assert await FailedRequestRows(database, AGENT).load_page() == [second]
    retried = await asyncio.gather(*(retry_failed_request(database, second) for _ in range(2)))
    assert sum(one is not None for one in retried) == 1
    assert await retry_failed_request(database, first) is None
    assert await FailedRequestRows(database, AGENT).load_page() == []
    waiting = [row for row in read_rows(database_url, "inbox") if row["state"] == RECEIVED]
    assert [(row["request"], row["sender"]) for row in waiting] == [('{"q": 1}', second.sender)]


async def test_a_failed_request_that_runs_again_has_its_channel(repository: AgentRepository, database_url: str) -> None:
    row, is_new, _ = repository.inbox.receive(b"k" * 16, ALICE, "{}", NOW, channel="web")
    assert await is_new
    for _ in range(3):
        await _crash(repository, row)
    await repository.inbox.finish(row, new_conversation(repository), None, None)
    await _crash(repository)
    [failed] = await FailedRequestRows(repository.database, AGENT).load_page()
    await retry_failed_request(repository.database, failed)
    assert [row["channel"] for row in read_rows(database_url, "inbox")] == ["web", "web"]


async def test_failed_requests_are_deleted_with_their_sender_and_after_seven_days(repository: AgentRepository) -> None:
    database = repository.database
    for erase in (True, False):
        row = await receive_request(repository, ALICE)
        for _ in range(3):
            await _crash(repository, row)
        await repository.inbox.finish(row, new_conversation(repository, str(row)), None, None)
        assert len(await FailedRequestRows(database, AGENT).load_page()) == 1
        [exported] = [record for record in await repository.inbox.load_received_from(ALICE) if record.request]
        assert exported.request == '{"secret": 1}'
        if erase:
            await repository.erase_person(ALICE)
        else:
            await repository.inbox.purge(NOW + timedelta(days=7))
            assert len(await FailedRequestRows(database, AGENT).load_page()) == 1
            await repository.inbox.purge(NOW + timedelta(days=8))
        assert await FailedRequestRows(database, AGENT).load_page() == []
