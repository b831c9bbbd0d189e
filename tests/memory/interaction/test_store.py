"""Interaction memory: the seed's API and file, under accidents, threads and processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from io import BytesIO
from pathlib import Path

import pytest

from spade_coreason.exceptions import MemoryFileError, StoreError
from spade_coreason.memory.interaction.format import dump, file_name, parse
from spade_coreason.memory.interaction.store import AgentInteractionMemory
from tests.support.memories import OpenMemory
from tests.support.profiling import count_calls
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

AGENT = "support_agent@example.com"


def memory_in(directory: Path, agent: str = AGENT) -> AgentInteractionMemory:
    return AgentInteractionMemory(agent, str(directory))


# The seed's API


def test_the_example_of_the_seed(open_memory: OpenMemory) -> None:
    memory = open_memory()
    confirmation = memory.add_information("customer_123", "Customer prefers email notifications")
    memory.add_information("customer_123", "Account type: premium")

    assert "Customer prefers email notifications" in confirmation
    assert memory.get_information("customer_123") == ["Customer prefers email notifications", "Account type: premium"]
    assert memory.get_context_summary("customer_123") == (
        "Previous interactions:\n- Customer prefers email notifications\n- Account type: premium"
    )
    assert memory.get_all_conversations() == ["customer_123"]
    assert memory.remove_information("customer_123", "Account type: premium", "unknown") == 1
    assert memory.remove_information("customer_123", "Account type: premium") == 0
    assert memory.remove_information("another", "Customer prefers email notifications") == 0
    assert memory.get_information("customer_123") == ["Customer prefers email notifications"]
    assert memory.clear_conversation("customer_123") is True
    assert memory.clear_conversation("customer_123") is False
    assert memory.get_information("customer_123") == []
    assert memory.get_context_summary("customer_123") is None
    assert memory.get_all_conversations() == []


def test_conversations_are_apart_and_in_the_order_in_which_they_began(open_memory: OpenMemory) -> None:
    memory = open_memory()
    for conversation in ("b", "a", "c", "a"):
        memory.add_information(conversation, f"said in {conversation}")
    assert memory.get_all_conversations() == ["b", "a", "c"]
    assert memory.get_information("a") == ["said in a", "said in a"]
    assert memory.get_information("nobody") == []


def test_the_file_is_exactly_the_seeds(tmp_path: Path) -> None:
    moments = iter(
        [
            datetime(2025, 1, 9, 10, 30, tzinfo=UTC),
            datetime(2025, 1, 9, 11, 35, 0, 1999, tzinfo=timezone(timedelta(hours=1))),
        ]
    )
    memory = AgentInteractionMemory("agent@example.com", tmp_path, clock=lambda: next(moments))
    memory.add_information("conversation_id", "User prefers JSON responses")
    memory.add_information("conversation_id", "Ärger mit «Umlauten» 🙂")
    memory.close()

    text = (tmp_path / "agent@example.com.json").read_text(encoding="utf-8")
    assert json.loads(text) == {
        "agent_id": "agent@example.com",
        "interactions": {
            "conversation_id": [
                {"content": "User prefers JSON responses", "timestamp": "2025-01-09T10:30:00.000Z"},
                {"content": "Ärger mit «Umlauten» 🙂", "timestamp": "2025-01-09T10:35:00.001Z"},
            ]
        },
    }
    assert "«Umlauten» 🙂" in text
    assert text.startswith('{\n    "agent_id": "agent@example.com",\n    "interactions": {\n')


def test_the_default_directory_is_data_memory_and_is_made_with_the_first_information(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    memory = AgentInteractionMemory("agent@example.com")
    assert memory.get_information("c") == []
    assert memory.clear_conversation("c") is False
    assert list(tmp_path.iterdir()) == []
    memory.add_information("c", "x")
    memory.flush()
    assert (tmp_path / "data" / "memory" / "agent@example.com.json").is_file()


def test_only_the_owner_can_read_what_an_agent_remembers(tmp_path: Path) -> None:
    memory = memory_in(tmp_path / "memory")
    memory.add_information("c", "secret")
    assert memory.journal_path.stat().st_mode & 0o777 == 0o600
    memory.flush()
    assert memory.path.parent.stat().st_mode & 0o777 == 0o700
    assert memory.path.stat().st_mode & 0o777 == 0o600
    memory.path.chmod(0o640)
    memory.add_information("c", "who chose other rights keeps them")
    assert memory.journal_path.stat().st_mode & 0o777 == 0o640
    memory.flush()
    assert memory.path.stat().st_mode & 0o777 == 0o640
    assert Path(f"{memory.path}.lock").stat().st_mode & 0o777 == 0o640  # who reads waits for who writes


@pytest.mark.parametrize(
    "text",
    [
        "\x00\x1b[31m",
        "line\nbreak\r\n\u2028",
        "\U0001d518\U0001d52b\U0001d526\U0001d520\U0001d52c\U0001d521\U0001d522 🏳️‍🌈",
        "שלום",
        '"}]',
        "\\ud800",
    ],
)
def test_any_unicode_comes_back_as_it_was(open_memory: OpenMemory, tmp_path: Path, text: str) -> None:
    memory = open_memory()
    memory.add_information(text, text)
    for _ in ("from the journal", "from the file"):
        again = open_memory()
        assert again.get_information(text) == [text]
        assert again.get_all_conversations() == [text]
        memory.close()
    memory.export_file(tmp_path / "exported")
    assert json.loads((tmp_path / "exported").read_text())["interactions"][text][0]["content"] == text
    assert memory.clear_conversations([text]) == 1
    assert memory.get_all_conversations() == []


@pytest.mark.parametrize("information", ["", "  \n", None, 7, ["x"], "half \ud83d a character"])
def test_information_that_is_no_text_is_refused_with_a_clear_sentence(
    open_memory: OpenMemory, tmp_path: Path, information: object
) -> None:
    memory = open_memory()
    with pytest.raises(ValueError, match=r"^information (must|has)"):
        memory.add_information("c", information)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ValueError, match=r"^conversation_id (must|has)"):
        memory.add_information(information, "x")  # type: ignore[arg-type]  # likewise
    assert not list(tmp_path.iterdir())


def test_an_agent_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="agent_id must not be empty"):
        AgentInteractionMemory("")


def test_the_file_is_written_like_pythons_json(tmp_path: Path) -> None:
    document = {
        "agent_id": "a",
        "interactions": {
            "c": [
                {"content": '\x7f\x00\u2028/"\\é🙂\n', "timestamp": ""},
                {"timestamp": "by hand", "content": "x", "more": {"x": [1.5, None]}},
            ],
            "nothing": [],
            "d": [{"content": str(number), "timestamp": "\\"} for number in range(10_000)],
        },
        "x": [],
        "y": {},
        "z": [1.5, None],
    }
    text = json.dumps(document, ensure_ascii=False, indent=4) + "\n"
    assert b"".join(dump(*parse(BytesIO(json.dumps(document).encode()), "a"))).decode() == text
    nothing = {"agent_id": "a", "interactions": {}}
    assert b"".join(dump(*parse(BytesIO(json.dumps(nothing).encode()), "a"))).decode() == json.dumps(nothing, indent=4) + "\n"


# Names


def test_two_agents_never_share_a_file_not_even_where_case_does_not_count() -> None:
    long = "x" * 1000
    ids = ["a_b@c", "a@b_c", "a-b@c", "A@b", "a@b", "%41@b", "%2541@b", "a@b/", "a/b", "a b", "é@b", "e\u0301@b", "É@b"]
    ids += [".", "..", "%2e", ".a", "a.json", "a", "a.json.lock", "~", long, long + "y", long.upper(), "x" * 190 + "A"]
    names = [file_name(agent_id) for agent_id in ids]
    assert len({name.casefold() for name in names}) == len(ids)
    # A hash stands only behind a "~", which no other name contains.
    assert file_name(file_name(long).removesuffix(".json")) != file_name(long)
    for name in names:
        assert len(name.encode()) <= 200
        assert name.isascii()
        assert "/" not in name
        assert not name.startswith(".")


def test_an_ordinary_jid_is_the_file_name() -> None:
    assert file_name("my-notes_2@chat.example.org") == "my-notes_2@chat.example.org.json"


def test_the_longest_jid_has_a_memory(open_memory: OpenMemory) -> None:
    agent = f"{'é' * 500}@{'d' * 63}.example"
    open_memory(agent).add_information("c", "x")
    assert open_memory(agent).get_information("c") == ["x"]


# Accidents

VALID_DOCUMENT = {"agent_id": AGENT, "interactions": {"c": [{"content": "x", "timestamp": "2025-01-09T10:30:00.000Z"}]}}
DAMAGED = {
    "truncated": json.dumps(VALID_DOCUMENT)[:-20],
    "empty": "",
    "not UTF-8": b"\xff\xfe\x00",
    "no object": "[]",
    "too deep": "[" * 100_000,
    "no interactions": json.dumps({"agent_id": AGENT}),
    "another agent's": json.dumps({**VALID_DOCUMENT, "agent_id": "other@example.com"}),
    "entries that are no list": json.dumps({"agent_id": AGENT, "interactions": {"c": "x"}}),
    "an entry that is no object": json.dumps({"agent_id": AGENT, "interactions": {"c": ["x"]}}),
    "no content": json.dumps({"agent_id": AGENT, "interactions": {"c": [{"timestamp": "x"}]}}),
    "no timestamp": json.dumps({"agent_id": AGENT, "interactions": {"c": [{"content": "x"}]}}),
    "a conversation twice": f'{{"agent_id": "{AGENT}", "interactions": {{"c": [], "c": []}}}}',
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_named_and_kept(tmp_path: Path, damage: str | bytes) -> None:
    data = damage.encode() if isinstance(damage, str) else damage
    path = tmp_path / f"{AGENT}.json"
    path.write_bytes(data)
    with pytest.raises(MemoryFileError, match="move it away") as caught:
        memory_in(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.path == path
    assert path.read_bytes() == data


def test_a_file_that_is_damaged_while_the_agent_runs_is_kept_too(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    memory.add_information("c", "x")
    memory.flush()
    memory.path.write_text('{"agent_id"')
    for attempt in (
        lambda: memory.add_information("c", "y"),
        lambda: memory.get_information("c"),
        lambda: memory.clear_conversation("c"),
    ):
        with pytest.raises(MemoryFileError, match="is not complete JSON"):
            attempt()
    assert memory.path.read_text() == '{"agent_id"'
    memory.path.rename(tmp_path / "aside")
    memory.add_information("c", "went on")
    assert memory.get_information("c") == ["went on"]


def test_fields_that_others_added_to_the_document_are_kept(tmp_path: Path) -> None:
    entry = {"content": "x", "timestamp": "2025-01-09T10:30:00", "by": "hand", "half": "\ud83d"}
    (tmp_path / f"{AGENT}.json").write_text(json.dumps({"agent_id": AGENT, "interactions": {"c": [entry]}, "version": 2}))
    memory = memory_in(tmp_path)
    memory.add_information("c", "y")
    memory.flush()
    document = json.loads(memory.path.read_text())
    assert document["version"] == 2
    assert document["interactions"]["c"][0] == entry


def test_a_change_by_hand_is_seen(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    memory.add_information("c", "mistyped")
    memory.flush()
    memory.add_information("c", "in the journal")
    memory.path.write_text(memory.path.read_text().replace("mistyped", "corrected by hand"))
    assert memory.get_information("c") == ["corrected by hand", "in the journal"]
    memory.flush()
    assert memory_in(tmp_path).get_information("c") == ["corrected by hand", "in the journal"]


def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path) -> None:
    # A limit on the size of files is to a writer what a full disk is; it needs a process of its own.
    result = run_python(
        tmp_path,
        """
        import resource, signal
        memory.add_information("c", "before")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        try:
            memory.add_information("c", "x" * 2000)
        except StoreError as error:
            print(error)
        for n in range(3):
            memory.add_information("c", "small")
        assert memory.get_information("c") == ["before", "small", "small", "small"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
        try:
            memory.flush()
        except StoreError as error:
            print(error)
        try:
            memory.clear_conversation("c")
        except StoreError as error:
            print(error)
        assert memory.get_information("c") == ["before", "small", "small", "small"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        memory.add_information("c", "after")
        """,
    )
    assert (
        result.splitlines()
        == [
            f"{tmp_path}/{AGENT}.json: cannot be written: File too large; stored data is unchanged;"
            " check the disk and try again"
        ]
        * 3
    )
    again = memory_in(tmp_path)
    assert again.get_information("c") == ["before", "small", "small", "small", "after"]
    again.close()
    assert memory_in(tmp_path).get_information("c") == ["before", "small", "small", "small", "after"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{AGENT}.json", f"{AGENT}.json.lock"]


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be read: Not a directory"):
        memory_in(tmp_path / "file" / "memory")


# Many at once


def test_threads_lose_nothing(open_memory: OpenMemory) -> None:
    shared, other = open_memory(), open_memory()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: (shared, other)[n % 2].add_information(str(n % 5), str(n)), range(100)))
    for memory in (shared, other, open_memory()):
        told = [memory.get_information(conversation) for conversation in memory.get_all_conversations()]
        assert sorted(int(text) for texts in told for text in texts) == list(range(100))


def test_processes_lose_nothing_and_see_what_the_others_added(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    code = """
print("ready")
sys.stdin.readline()
for n in range(100):
    memory.add_information("c", f"{sys.argv[1]} {n}")
    print(n)
"""
    with ExitStack() as stack:
        children = [stack.enter_context(start_process(tmp_path, code, name)) for name in names]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        watcher, before = memory_in(tmp_path), list[str]()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        assert children[0].stdout is not None
        for line in children[0].stdout:
            now = watcher.get_information("c")
            assert now[: len(before)] == before
            assert f"one {line.strip()}" in now
            before = now
        for child in children[1:]:
            assert child.stdout is not None
            child.stdout.read()  # until it has ended
    told = watcher.get_information("c")
    assert len(told) == 300
    for name in names:
        assert [text for text in told if text.startswith(name)] == [f"{name} {n}" for n in range(100)]


def test_a_change_of_the_same_size_in_the_same_instant_is_seen(tmp_path: Path) -> None:
    reader, writer = memory_in(tmp_path), memory_in(tmp_path)
    for number in range(100, 300):
        writer.add_information("c", str(number))
        assert reader.get_information("c") == [str(number)]
        writer.clear_conversation("c")


def test_a_clock_that_goes_back_hides_no_change(tmp_path: Path) -> None:
    reader, writer = memory_in(tmp_path), memory_in(tmp_path)
    writer.add_information("c", "x")
    writer.flush()
    tomorrow = writer.path.stat().st_mtime_ns + 86_400 * 10**9
    os.utime(writer.path, ns=(tomorrow, tomorrow))
    assert reader.get_information("c") == ["x"]
    writer.add_information("c", "y")
    writer.flush()
    assert writer.path.stat().st_mtime_ns > tomorrow
    assert reader.get_information("c") == ["x", "y"]


async def test_the_awaitable_methods_do_the_same_in_the_order_of_their_calls(open_amemory: OpenMemory) -> None:
    memory = open_amemory()
    confirmations = await asyncio.gather(*(memory.aadd_information("c", str(n)) for n in range(30)))
    assert all(str(n) in confirmation for n, confirmation in enumerate(confirmations))
    assert await memory.aget_information("c") == [str(n) for n in range(30)]
    assert await memory.aget_context_summary("c") == memory.get_context_summary("c")
    assert await memory.aget_all_conversations() == ["c"]
    assert await memory.aclear_conversation("c") is True
    assert await memory.aclear_conversation("c") is False
    with pytest.raises(ValueError, match="information must not be empty"):
        await memory.aadd_information("c", "")


def test_one_memory_serves_several_event_loops_one_after_the_other(open_memory: OpenMemory) -> None:
    memory = open_memory()

    async def add_two() -> None:
        await asyncio.gather(memory.aadd_information("c", "x"), memory.aadd_information("c", "x"))

    asyncio.run(add_two())
    asyncio.run(add_two())
    assert len(memory.get_information("c")) == 4


def test_reading_an_unchanged_file_does_not_read_it_again(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    for number in range(100):
        memory.add_information(f"long {number}", "x" * 50_000)
    memory.add_information("c", "x")
    memory.flush()
    memory.get_information("c")
    with count_calls() as calls:
        for _ in range(1000):
            memory.get_information("c")
    assert calls["stat"] >= 1000  # it looks whether the files have changed
    assert {name: calls[name] for name in ("open", "read", "readline", "loads", "decode")} == dict.fromkeys(
        ("open", "read", "readline", "loads", "decode"), 0
    )


# Tools for language models


def test_the_tools_have_the_seeds_schemas(open_memory: OpenMemory) -> None:
    remember, history = open_memory().tools("c")
    assert remember.schema == {
        "name": "remember_interaction_info",
        "description": "Store important information for future reference",
        "parameters": {
            "type": "object",
            "properties": {"information": {"type": "string", "description": "Important information to remember"}},
            "required": ["information"],
        },
    }
    assert history.schema == {
        "name": "get_interaction_history",
        "description": "Get previous interaction information",
        "parameters": {"type": "object", "properties": {}, "required": []},
    }


async def test_each_tool_works_on_its_own_conversation_only(open_amemory: OpenMemory) -> None:
    memory = open_amemory()
    remember_a, history_a = memory.tools("a")
    remember_b, history_b = memory.tools("b")
    assert "likes tea" in remember_a(information="likes tea")
    assert "likes coffee" in await remember_b.acall(information="likes coffee")
    assert history_a() == "Previous interactions:\n- likes tea"
    assert await history_b.acall() == "Previous interactions:\n- likes coffee"
    assert memory.get_all_conversations() == ["a", "b"]


def test_a_tool_reports_an_empty_history_and_refuses_unknown_arguments(open_memory: OpenMemory) -> None:
    remember, history = open_memory().tools("c")
    assert history() == "No previous interactions."
    with pytest.raises(ValueError, match="information must not be empty"):
        remember(information=" ")
    with pytest.raises(TypeError, match="conversation_id"):
        remember(information="x", conversation_id="another")


# Processes of our own

PRELUDE = f"""
import sys
sys.stdout.reconfigure(line_buffering=True)
from spade_coreason.exceptions import StoreError
from spade_coreason.memory.interaction.store import AgentInteractionMemory
memory = AgentInteractionMemory("{AGENT}", sys.argv[-1])
"""


def start_process(directory: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, *arguments, str(directory)]
    return WarmProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_python(directory: Path, code: str) -> str:
    lines = code.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    with start_process(directory, "\n".join(line[indent:] for line in lines)) as child:
        output, _ = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0
    return output


def test_when_the_last_information_of_a_conversation_is_removed_the_conversation_is_gone(open_memory: OpenMemory) -> None:
    memory = open_memory("support@localhost")
    for text in ("one", "two", "one"):
        memory.add_information("c", text)
    memory.add_information("d", "one")
    assert memory.remove_information("c", "one", "two") == 3
    assert memory.get_all_conversations() == ["d"]
    assert memory.clear_conversation("c") is False
