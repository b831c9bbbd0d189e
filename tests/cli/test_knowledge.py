"""Documents are given to agents, listed, searched and taken away from the command line."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spade_coreason.cli.errors import EXIT_PIPE_CLOSED
from spade_coreason.storage.backends.lock import lock_directory
from tests.cli.conftest import Invoke
from tests.support.model_server import ModelServer
from tests.support.program import COMMAND, clean_environment, run_in_background
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

AGENT = "notes@localhost"


def build_pdf(text: str) -> bytes:
    """Build a PDF of one page with one line."""
    drawing = f"BT /F 12 Tf 20 50 Td ({text}) Tj ET"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        f"<</Length {len(drawing)}>>stream\n{drawing}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    file, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(file))
        file += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n{len(file)}\n%%EOF\n"
    return f"{file}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A directory with documents of all kinds, and files that are no documents."""
    docs = tmp_path / "docs"
    (docs / "inner").mkdir(parents=True)
    (docs / "refunds.md").write_text("# Refunds\n\nSubscriptions can be refunded within 14 days.")
    (docs / "inner" / "hours.txt").write_text("The office opens at nine.")
    (docs / "warranty.pdf").write_bytes(build_pdf("The warranty lasts two years."))
    (docs / "picture.png").write_bytes(b"\x89PNG")
    (docs / ".hidden.txt").write_text("hidden")
    return docs


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """A server with an embedding model, in a thread: the commands run loops of their own."""
    started, stop = threading.Event(), asyncio.Event()
    model_server, loops = ModelServer(), list[asyncio.AbstractEventLoop]()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with model_server:
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(TIMEOUT_S)
    yield model_server
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()


def document_names(invoke: Invoke) -> list[str]:
    return [Path(record["document"]).name for record in json.loads(invoke("knowledge", "list", AGENT, "--json").stdout)]


def test_documents_are_added_once_updated_searched_and_removed(invoke: Invoke, docs: Path) -> None:
    done = invoke("knowledge", "add", AGENT, "docs")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{AGENT}: 3 documents: 3 new.\n"
    (docs / "refunds.md").write_text("# Refunds\n\nThere are none.")
    again = invoke("knowledge", "add", AGENT, str(docs), "docs/refunds.md", "--json")
    assert sorted(one["outcome"] for one in json.loads(again.stdout)) == ["changed", "same", "same", "same"]
    assert sorted(document_names(invoke)) == ["hours.txt", "refunds.md", "warranty.pdf"]
    shown = invoke("knowledge", "search", AGENT, "How long is the warranty?", "--threshold", "0.4").stdout.splitlines()
    assert shown == [f"0.50  {docs / 'warranty.pdf'} (1)", "      The warranty lasts two years."]
    assert json.loads(invoke("knowledge", "search", AGENT, "refunds", "--json").stdout) == [
        {"score": 1.0, "document": str(docs / "refunds.md"), "passage": 1, "text": "Refunds\nThere are none."}
    ]
    assert invoke("knowledge", "search", AGENT, "elephants").stdout == (
        "No passages with a score of 0.7 or more; try a lower --threshold.\n"
    )
    assert f"{AGENT}: removed 1 document.\n" in invoke("knowledge", "remove", AGENT, "docs/inner").stdout
    refused = invoke("knowledge", "remove", AGENT, "docs/inner")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "--yes: is missing" in invoke("knowledge", "remove", AGENT, "--all").stderr
    assert "removed 2 documents" in invoke("knowledge", "remove", AGENT, "--all", "--yes").stdout
    assert document_names(invoke) == []
    assert invoke("knowledge", "list", AGENT).stdout == "No documents.\n"


def test_documents_of_a_person_are_listed_and_found_only_for_them(invoke: Invoke, docs: Path) -> None:
    assert invoke("knowledge", "add", AGENT, "docs/refunds.md", "--person", "alice@localhost").exit_code == 0
    assert document_names(invoke) == []
    assert "No passage" in invoke("knowledge", "search", AGENT, "refunds").stdout
    assert "No passage" in invoke("knowledge", "search", AGENT, "refunds", "--person", "bob@localhost").stdout
    assert "refunds.md" in invoke("knowledge", "search", AGENT, "refunds", "--person", "alice@localhost").stdout
    cleared = invoke("sessions", "clear", "--person", "alice@localhost", "--agent", AGENT, "--yes")
    assert "1 document" in cleared.stdout
    assert "No passage" in invoke("knowledge", "search", AGENT, "refunds", "--person", "alice@localhost").stdout


def test_a_person_may_be_written_with_capitals_and_a_resource(invoke: Invoke, docs: Path) -> None:
    assert invoke("knowledge", "add", AGENT, "docs/refunds.md", "--person", "Alice@Localhost/phone").exit_code == 0
    for person in ("alice@localhost", "ALICE@localhost/desk"):
        assert "refunds.md" in invoke("knowledge", "list", AGENT, "--person", person).stdout
        assert "refunds.md" in invoke("knowledge", "search", AGENT, "refunds", "--person", person).stdout
    refused = invoke("knowledge", "add", AGENT, "docs/refunds.md", "--person", "alice")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith("error: --person: ")


def test_the_platforms_own_data_in_a_directory_are_no_documents(invoke: Invoke, docs: Path) -> None:
    Path("data/server").mkdir(parents=True)
    Path("data/server/notes.txt").write_text("who logged in")
    assert invoke("knowledge", "add", AGENT, ".").stdout == f"{AGENT}: 3 documents: 3 new.\n"
    assert "notes.txt" not in invoke("knowledge", "list", AGENT).stdout
    assert invoke("knowledge", "add", AGENT, "data/server/notes.txt").exit_code == 0


def test_one_file_that_cannot_be_read_stops_no_other(invoke: Invoke, docs: Path) -> None:
    (docs / "a_broken.pdf").write_bytes(b"%PDF-nothing")
    done = invoke("knowledge", "add", AGENT, "docs")
    assert done.exit_code == 1
    assert done.stdout == f"{AGENT}: 4 documents: 3 new, 1 failed.\n"
    assert done.stderr.startswith("error: ")
    assert "a_broken.pdf: cannot be read as PDF" in done.stderr
    for wrong in ("nothing.txt", "empty"):
        Path("empty").mkdir(exist_ok=True)
        refused = invoke("knowledge", "add", AGENT, wrong)
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)


def test_adding_ends_quietly_if_the_reader_of_its_output_is_gone(tmp_path: Path, docs: Path) -> None:
    command = [*COMMAND, "knowledge", "add", AGENT, "docs", "--json"]
    environment = clean_environment({"PYTHONUNBUFFERED": ""})  # the output is written at the end
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=pipe, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False
        )
    assert (done.returncode, done.stderr) == (EXIT_PIPE_CLOSED, b"")


def test_a_document_that_is_too_long_for_a_request_is_one_line_and_the_others_are_added(
    invoke_beside_platform: Invoke, tmp_path: Path
) -> None:
    long, other = tmp_path / "a-long.txt", tmp_path / "b.txt"
    long.write_text("\x01" * 14 * 2**20 + "a")  # a character of which JSON makes six
    other.write_text("something")
    done = invoke_beside_platform("knowledge", "add", "notes", str(long), str(other))
    assert done.exit_code == 1
    assert f"error: {long}: the request has 88,080," in done.stderr
    assert ", more than the limit of 83,886,080; send less at once\n" in done.stderr
    assert done.stdout == "notes@localhost: 2 documents: 1 new, 1 failed.\n"


def test_another_model_is_noticed_and_reindexing_repairs_the_index(
    invoke: Invoke, docs: Path, model_server: ModelServer
) -> None:
    def configure(model: str) -> None:
        Path("config").mkdir(exist_ok=True)
        knowledge = f"knowledge: {{embedder: openai, url: '{model_server.url}', model: {model}}}"
        Path("config/platform.yaml").write_text(f"agents: [{{jid: {AGENT}, agent: 'a:B'}}]\n{knowledge}\n")

    configure("first")
    assert invoke("knowledge", "add", "notes", "docs").exit_code == 0
    found = invoke("knowledge", "search", "notes", "reimbursed", "--threshold", "0.6")
    assert "refunds.md" in found.stdout, found.output
    configure("second")
    shown = invoke("knowledge", "list", "notes")
    assert shown.stdout.splitlines()[0].split() == ["DOCUMENT", "PASSAGES", "INDEXED", "CHARACTERS", "ADDED"]
    assert (
        "3 passages have no vector of the configured model; run: spade-coreason knowledge reindex notes@localhost\n"
        in shown.stdout
    )
    assert "No passage" in invoke("knowledge", "search", "notes", "reimbursed", "--threshold", "0.6").stdout
    assert invoke("knowledge", "reindex", "notes").stdout == f"{AGENT}: computed 3 vectors.\n"
    assert invoke("knowledge", "reindex", "notes").stdout == f"{AGENT}: computed 0 vectors.\n"
    assert "refunds.md" in invoke("knowledge", "search", "notes", "reimbursed", "--threshold", "0.6").stdout


def test_without_an_embedder_there_is_no_index(invoke: Invoke, docs: Path) -> None:
    assert invoke("knowledge", "add", AGENT, "docs").exit_code == 0
    assert invoke("knowledge", "list", AGENT).stdout.splitlines()[0].split() == ["DOCUMENT", "PASSAGES", "CHARACTERS", "ADDED"]
    refused = invoke("knowledge", "reindex", AGENT)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "knowledge.embedder: is none" in refused.stderr


def test_beside_another_command_knowledge_is_shown_and_not_changed(invoke: Invoke, docs: Path) -> None:
    assert invoke("knowledge", "add", AGENT, "docs").exit_code == 0
    with lock_directory(Path("data")):
        assert len(document_names(invoke)) == 3
        assert "refunds.md" in invoke("knowledge", "search", AGENT, "refunded").stdout
        for arguments in (["add", AGENT, "docs"], ["remove", AGENT, "docs"], ["reindex", AGENT]):
            refused = invoke("knowledge", *arguments)
            assert refused.exit_code == 2
            assert "stop it first" in refused.stderr


def test_a_platform_that_is_starting_or_stopping_is_reported(invoke: Invoke, docs: Path) -> None:
    assert invoke("knowledge", "add", AGENT, "docs").exit_code == 0
    with lock_directory(Path("data")), socket.socket(socket.AF_UNIX) as stale_socket:
        stale_socket.bind("data/platform.sock")
        refused = invoke("knowledge", "remove", AGENT, "docs")
    assert (refused.exit_code, refused.stderr.count("\n")) == (4, 1)
    assert "starting or stopping; try again" in refused.stderr


def test_an_agent_that_asks_for_its_knowledge_is_checked_and_runs(invoke: Invoke) -> None:
    Path("librarian.py").write_text(
        "class Librarian:\n"
        "    def __init__(self, manifest, knowledge):\n"
        "        self.manifest, self.knowledge = manifest, knowledge\n\n"
        "    async def assist(self, request, session, response):\n"
        "        await self.knowledge.add('the key is under the mat', 'key')\n"
        "        await response.markdown(str(await session.recall('key')))\n"
    )
    Path("platform.yaml").write_text("agents: [{jid: a@localhost, agent: 'librarian:Librarian'}]\n")
    checked = invoke("check", "-c", "platform.yaml")
    assert checked.exit_code == 0, checked.output
    assert "librarian:Librarian" in checked.stdout
    with run_in_background("up", "-c", "platform.yaml", cwd=Path.cwd(), until=r"^Ready"):
        asked = invoke("ask", "a@localhost", "where is it?")
        assert asked.stdout == "['the key is under the mat']\n", asked.output
        assert [record["document"] for record in json.loads(invoke("knowledge", "list", "a", "--json").stdout)] == ["key"]


def test_a_running_platform_adds_and_removes_documents(invoke: Invoke, docs: Path, model_server: ModelServer) -> None:
    Path("reader.py").write_text(
        "from spade_coreason import agent\n\n"
        "@agent(description='reads')\n"
        "async def reader(request, session, response):\n"
        "    await response.markdown(str(await session.recall(request.payload['query'], threshold=0.6)))\n"
    )
    (docs / "broken.pdf").write_bytes(b"%PDF-nothing")

    knowledge = f"knowledge: {{embedder: openai, url: '{model_server.url}', model: m}}"
    agents = "agents: [{jid: a@localhost, agent: 'reader:reader'}]"
    Path("config").mkdir()
    Path("config/platform.yaml").write_text(f"{agents}\n{knowledge}\n")
    threads = itertools.count()  # in each nothing was said before

    def ask_reader() -> str:
        return invoke("ask", "a@localhost", "When is money reimbursed?", "--thread", str(next(threads))).stdout

    with run_in_background("up", cwd=Path.cwd(), until=r"^Ready") as platform:
        assert "Subscriptions" not in ask_reader()
        done = invoke("knowledge", "add", "a", "docs")
        assert (done.exit_code, done.stdout) == (1, "a@localhost: 4 documents: 3 new, 1 failed.\n")
        assert "broken.pdf: cannot be read as PDF" in done.stderr
        assert "Subscriptions can be refunded" in ask_reader()
        (docs / "refunds.md").write_text("Refunds are slow.")
        again = invoke("knowledge", "add", "a", "docs/refunds.md", "docs/inner", "--json")
        assert [one["outcome"] for one in json.loads(again.stdout)] == ["changed", "same"]
        assert "Refunds are slow." in ask_reader()
        model_server.failures = [400]
        refused = invoke("knowledge", "add", "a", "reader.py")
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
        assert "/v1/embeddings: answered HTTP 400" in refused.stderr
        assert invoke("knowledge", "reindex", "a").stdout == "a@localhost: computed 1 vector.\n"
        assert "removed 1 document" in invoke("knowledge", "remove", "a", "docs/refunds.md").stdout
        assert "slow" not in ask_reader()
        unknown = invoke("knowledge", "add", "b@localhost", "reader.py")
        assert (unknown.exit_code, unknown.stdout) == (0, "b@localhost: 1 document: 1 new.\n")
        assert platform.stop(signal.SIGTERM)[0] == 0
    assert not Path("data/platform.sock").exists()


def test_adding_resumes_after_a_kill(invoke: Invoke, docs: Path, model_server: ModelServer) -> None:
    knowledge = f"knowledge: {{embedder: openai, url: '{model_server.url}', model: m, batch: 1}}"
    Path("p.yaml").write_text(f"agents: [{{jid: {AGENT}, agent: 'a:B'}}]\n{knowledge}\n")
    good = json.dumps({"data": [{"index": 0, "embedding": [1.0] * model_server.dimension}]})
    model_server.failures = [good, None]  # the second one is never answered
    process = WarmProcess[bytes]([*COMMAND, "knowledge", "add", AGENT, "docs", "-c", "p.yaml"], env=clean_environment())
    try:
        while len(model_server.requests) < 2:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    documents = json.loads(invoke("knowledge", "list", AGENT, "-c", "p.yaml", "--json").stdout)
    assert sorted(document["indexed"] for document in documents) == [0, 1]
    model_server.requests.clear()
    again = invoke("knowledge", "add", AGENT, "docs", "-c", "p.yaml", "--json")
    assert sorted(one["outcome"] for one in json.loads(again.stdout)) == ["new", "same", "same"]
    assert len(model_server.requests) == 2  # the first is not asked for again
    documents = json.loads(invoke("knowledge", "list", AGENT, "-c", "p.yaml", "--json").stdout)
    assert [document["indexed"] for document in documents] == [1, 1, 1]
