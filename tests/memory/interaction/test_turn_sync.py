"""Syncs of the interaction memory: once a turn, before its reply, and at once outside of turns."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, AgentTester, ResponseHandler, SessionHandle
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.memory.interaction.file import MemoryFile, MemoryLimits
from spade_coreason.memory.interaction.format import encode_entry
from spade_coreason.memory.interaction.turn_sync import Addition, DeferredSyncs, DeferredSyncTarget
from tests.support.errors import ExpectedErrors
from tests.support.wait import eventually

ALICE, BOB = "alice@localhost", "bob@localhost"
MEMORY_AGENT = "notes@localhost"


class PowerCutDisk:
    """A disk that records the content of each journal at its last sync, which is all that a power cut leaves."""

    def __init__(self) -> None:
        self.synced_content: dict[str, bytes] = {}
        self.syncs = 0
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.failures_left = 0
        self._sync, self._sync_all = os.fdatasync, os.fsync

    def fsync(self, descriptor: int) -> None:
        if self.failures_left:
            self.failures_left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync_all(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        assert self.may_sync.wait(30)
        if self.failures_left:
            return self.fsync(descriptor)
        data = Path(path).read_bytes()
        self._sync(descriptor)
        self.synced_content[path] = data
        self.syncs += 1

    def information_after_power_cut(self, memory: AgentInteractionMemory, directory: Path) -> list[str]:
        """Return the information that is left after a power cut."""
        directory.mkdir()
        (directory / memory.journal_path.name).write_bytes(self.synced_content.get(str(memory.journal_path), b""))
        return AgentInteractionMemory(MEMORY_AGENT, directory).get_information("c")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerCutDisk]:
    disk = PowerCutDisk()
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, getattr(disk, name))  # a power cut cannot be had
    yield disk
    disk.may_sync.set()


class WorkAgent:
    """Run the test's function in each turn; `quiet` is answered at once."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.manifest = AgentDefinition.simple("agent")
        self.work = work

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] != "quiet":
            await self.work()
        await response.markdown("done")


def memory_in(directory: Path, **options: Any) -> AgentInteractionMemory:
    return AgentInteractionMemory(MEMORY_AGENT, directory / "memory", **options)


async def test_outside_of_turns_each_addition_is_synced_when_it_returns(tmp_path: Path, disk: PowerCutDisk) -> None:
    memory = memory_in(tmp_path)
    memory.add_information("c", "0")
    assert (disk.syncs, disk.information_after_power_cut(memory, tmp_path / "0")) == (1, ["0"])
    await memory.aadd_information("c", "1")
    assert (disk.syncs, disk.information_after_power_cut(memory, tmp_path / "1")) == (2, ["0", "1"])


async def test_the_additions_of_a_turn_are_synced_once_and_before_its_reply_is_stored(
    tmp_path: Path, disk: PowerCutDisk
) -> None:
    memory = memory_in(tmp_path)
    expected = [str(number) for number in range(40)]

    async def work() -> None:
        for number in range(0, 40, 4):
            memory.add_information("c", str(number))
            await memory.aadd_information("c", str(number + 1))
            await asyncio.create_task(memory.aadd_information("c", str(number + 2)))
            await asyncio.to_thread(memory.add_information, "c", str(number + 3))

    async with AgentTester(WorkAgent(work)) as t:
        repository = t.runners[t.jid].repository
        disk.may_sync.clear()
        asking = asyncio.create_task(t.say("work", user=ALICE))
        await eventually(lambda: memory.get_information("c") == expected)
        # The disk is slow. Whoever asks something else is answered, the turn is not, and of its words none leaves.
        assert await t.say("quiet", user=BOB) == ["done"]
        finished, _ = await asyncio.wait({asking}, timeout=0.3)
        assert not finished
        assert t.unread(ALICE) == []
        assert disk.syncs == 0
        assert [pending.reply for pending in await repository.inbox.load_pending()] == [None]
        disk.may_sync.set()
        assert await asking == ["done"]
        assert disk.syncs == 1
        assert disk.information_after_power_cut(memory, tmp_path / "after") == expected


async def test_turns_that_end_together_share_syncs(tmp_path: Path, disk: PowerCutDisk) -> None:
    memory = memory_in(tmp_path)
    many, began = 50, 0

    async def work() -> None:
        nonlocal began
        began += 1
        await memory.aadd_information("c", "x")

    async with AgentTester(WorkAgent(work)) as t:
        disk.may_sync.clear()
        asking = [asyncio.create_task(t.say("work", user=f"u{number}@localhost")) for number in range(many)]
        await eventually(lambda: memory.get_information("c") == ["x"] * many)
        disk.may_sync.set()
        assert await asyncio.gather(*asking) == [["done"]] * many
        assert began == many
        assert disk.syncs <= 3  # the first, one for all that added meanwhile, and one for who was about to end then


@pytest.mark.parametrize("end", ["fails", "is stopped", "takes its end"])
async def test_a_failed_or_cancelled_turn_is_synced_too(
    tmp_path: Path, disk: PowerCutDisk, end: str, expected_errors: ExpectedErrors
) -> None:
    if end != "is stopped":
        expected_errors("RuntimeError: no" if end == "fails" else "SystemExit")
    memory = memory_in(tmp_path)

    async def work() -> None:
        await memory.aadd_information("c", "x")
        if end == "fails":
            raise RuntimeError("no")
        if end == "takes its end":
            raise SystemExit
        await asyncio.Event().wait()

    async with AgentTester(WorkAgent(work)) as t:
        asking = asyncio.create_task(t.say("work", user=ALICE))
        await eventually(lambda: memory.get_information("c") == ["x"])
        if end == "is stopped":
            t.send_stanza("<message to='agent@localhost' type='chat' id='2'><body>/cancel</body></message>", user=ALICE)
        await asking
        assert (disk.syncs, disk.information_after_power_cut(memory, tmp_path / "after")) == (1, ["x"])


async def test_an_addition_after_its_turn_syncs_by_itself(tmp_path: Path, disk: PowerCutDisk) -> None:
    memory = memory_in(tmp_path)
    goes_on = asyncio.Event()
    tasks: list[asyncio.Task[str]] = []

    async def later() -> str:
        await goes_on.wait()
        return await memory.aadd_information("c", "later")

    async def work() -> None:
        tasks.append(asyncio.create_task(later()))

    async with AgentTester(WorkAgent(work)) as t:
        await t.say("work")
        assert disk.syncs == 0
        goes_on.set()
        await tasks[0]
        assert (disk.syncs, disk.information_after_power_cut(memory, tmp_path / "after")) == (1, ["later"])


async def test_an_addition_under_way_when_its_turn_ends_is_synced_by_it_or_by_itself(
    tmp_path: Path, disk: PowerCutDisk
) -> None:
    memory = memory_in(tmp_path)
    tasks: list[asyncio.Task[str]] = []

    async def work() -> None:
        tasks.append(asyncio.create_task(memory.aadd_information("c", str(len(tasks)))))
        for _ in range(len(tasks) % 8):  # in all the stages of an addition
            await asyncio.sleep(0)

    async with AgentTester(WorkAgent(work)) as t:
        for number in range(64):
            await t.say("work")
            await tasks[-1]
            known = disk.synced_content[str(memory.journal_path)]
            assert known == memory.journal_path.read_bytes(), number


def test_an_addition_in_the_moment_in_which_its_turn_ends_is_left_to_its_own_sync(tmp_path: Path) -> None:
    class EndsTurn(set[DeferredSyncTarget]):
        def add(self, memory: DeferredSyncTarget) -> None:
            syncs.is_closed = True  # as another thread may between the check and the addition
            super().add(memory)

    memory = AgentInteractionMemory(MEMORY_AGENT, tmp_path)
    syncs = DeferredSyncs(EndsTurn())
    assert not syncs.defer(memory)


def test_a_sync_waits_for_a_running_write(tmp_path: Path, disk: PowerCutDisk) -> None:
    file = MemoryFile(tmp_path / "memory.json", MEMORY_AGENT, MemoryLimits(), is_durable=True)
    syncing = threading.Thread(target=file.sync)

    def sync_during_write() -> bool:
        assert file.completed_syncs < file.deferred_syncs  # so that a turn that ends now does not believe that nothing is left
        syncing.start()
        syncing.join(0.1)
        assert syncing.is_alive()
        return True

    file.enqueue(addition := Addition("c", encode_entry({"content": "x", "timestamp": ""}), sync_during_write))
    file.write_queued()
    addition.result()
    syncing.join()
    assert disk.synced_content == {str(file.journal_path): file.journal_path.read_bytes()}
    assert file.completed_syncs == file.deferred_syncs


async def test_a_turn_in_which_settle_was_called_has_nothing_left_to_sync(tmp_path: Path, disk: PowerCutDisk) -> None:
    memory = memory_in(tmp_path)

    async def work() -> None:
        memory.add_information("c", "x")
        await memory.asettle()
        assert disk.information_after_power_cut(memory, tmp_path / "within") == ["x"]

    async with AgentTester(WorkAgent(work)) as t:
        assert await t.say("work") == ["done"]
    assert disk.syncs == 1


async def test_with_normal_durability_nothing_is_synced(tmp_path: Path, disk: PowerCutDisk) -> None:
    memory = memory_in(tmp_path, durability="normal")

    async def work() -> None:
        memory.add_information("c", "x")

    async with AgentTester(WorkAgent(work)) as t:
        assert await t.say("work") == ["done"]
    memory.settle()
    assert disk.syncs == 0


@pytest.mark.parametrize("goes_on", [False, True])
async def test_additions_that_another_process_folds_in_during_a_turn_are_safe(
    tmp_path: Path, disk: PowerCutDisk, goes_on: bool
) -> None:
    memory, other = memory_in(tmp_path), memory_in(tmp_path)

    async def work() -> None:
        await memory.aadd_information("c", "x")
        assert disk.syncs == 0
        other.flush()
        if goes_on:
            await asyncio.to_thread(other.add_information, "c", "y")

    async with AgentTester(WorkAgent(work)) as t:
        assert await t.say("work") == ["done"]
    assert memory.path.exists()
    assert memory.journal_path.exists() == goes_on
    assert memory_in(tmp_path).get_information("c") == (["x", "y"] if goes_on else ["x"])
    if goes_on:
        assert disk.synced_content[str(memory.journal_path)] == memory.journal_path.read_bytes()


# Accidents


async def test_a_turn_whose_memory_cannot_be_synced_is_not_answered_as_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot be read: Is a directory")
    memory = memory_in(tmp_path)

    async def work() -> None:
        await memory.aadd_information("c", "x")
        memory.journal_path.rename(tmp_path / "aside")
        memory.journal_path.mkdir()

    async with AgentTester(WorkAgent(work)) as t:
        with pytest.raises(
            PeerFailedError, match=r"I cannot read or write my memory, so this is not stored\. Please try again later"
        ) as caught:
            await t.ask("work")
        assert caught.value.code == 503
        assert "cannot be read: Is a directory; stored data is unchanged; check the disk and try again" in caplog.text
        memory.journal_path.rmdir()
        (tmp_path / "aside").rename(memory.journal_path)
        memory.settle()
        assert not memory.journal_path.exists()  # it was not believed, and written anew
        assert memory_in(tmp_path).get_information("c") == ["x"]


async def test_each_memory_that_cannot_be_synced_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("a/memory/notes@localhost.json: cannot be read", "b/memory/notes@localhost.json: cannot be read")
    memories = [memory_in(tmp_path / name) for name in "ab"]

    async def work() -> None:
        for memory in memories:
            await memory.aadd_information("c", "x")
            memory.journal_path.unlink()
            memory.journal_path.mkdir()

    async with AgentTester(WorkAgent(work)) as t:
        with pytest.raises(PeerFailedError, match="this is not stored"):
            await t.ask("work")
    assert all(f"{memory.path}: cannot be read: Is a directory" in caplog.text for memory in memories)


@pytest.mark.parametrize("refusals", [1, 2])
async def test_additions_that_the_disk_fails_to_sync_are_written_again(
    tmp_path: Path, disk: PowerCutDisk, refusals: int, expected_errors: ExpectedErrors
) -> None:
    if refusals == 2:
        expected_errors("cannot be written: Input/output error")
    memory = memory_in(tmp_path)

    async def work() -> None:
        await memory.aadd_information("c", "x")
        disk.failures_left = refusals

    async with AgentTester(WorkAgent(work)) as t:
        if refusals == 1:
            assert (await t.ask("work")).text == "done"
        else:
            with pytest.raises(PeerFailedError, match="this is not stored"):
                await t.ask("work")
            assert not memory.path.exists()
            memory.settle()  # as the next turn that adds does
    assert not memory.journal_path.exists()  # a second sync of it would not be believed
    assert '"content": "x"' in memory.path.read_text()
