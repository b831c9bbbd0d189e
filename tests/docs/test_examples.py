"""The examples do what their pages show beside commands: in a chat, in a room, and with a model."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.docs.pages import EXAMPLES, Block, Page, PageRun, read_page
from tests.docs.setups import scripted_model
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal
from tests.support.wait import TIMEOUT_S
from tests.xmpp.muc.test_rooms import Person


@contextmanager
def running_example(name: str, directory: Path, *commands: str, environment: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Run commands in a copy of an example, and yield its folder. Those in the background run until the end of the block."""
    path = EXAMPLES / name / "README.md"
    text = "".join(f"$ {command}\n" for command in (f"cd examples/{name}", *commands))
    page = Page(path, (Block("console", None, text, 1, None, ""),), ())
    with PageRun(page, directory, environment or {}).running():
        yield directory / "examples" / name


def transcript(name: str) -> list[tuple[str, list[str]]]:
    """Read what is said in the blocks of a page that are a conversation: each speaker with the lines of the text."""
    blocks = [block for block in read_page(EXAMPLES / name / "README.md").blocks if block.language == "text"]
    said: list[tuple[str, list[str]]] = []
    for line in "".join(block.text for block in blocks).splitlines():
        speaker, text = line[:13].strip(), line[13:]
        if speaker:
            said.append((speaker, [text]))
        else:
            said[-1][1].append(text)
    return said


def check_text(shown: list[str], text: str) -> None:
    """Check a text against the lines of a page, in which `…` stands for any lines."""
    pattern = "\n".join("(.|\n)*" if line == "…" else re.escape(line) for line in shown)
    assert re.fullmatch(pattern, text), f"the bot says {text!r}, and the page {shown}"


def test_the_staff_of_the_support_desk_answers_in_a_chat(tmp_path: Path) -> None:
    [block] = [block for block in read_page(EXAMPLES / "support_desk" / "README.md").blocks if block.language == "text"]
    up, ask = "spade-coreason up -c platform.yaml &", 'spade-coreason ask support "Do you repair frames?"'
    with running_example("support_desk", tmp_path, up, ask) as here:
        chat = Terminal("chat", "support", cwd=here)
        try:
            chat.wait_for_prompt("support")
            for line in block.text.splitlines():
                if line.startswith("support ▸ "):
                    chat.type(line.removeprefix("support ▸ ") + "\r")
                else:
                    chat.wait_for(re.escape(line.strip()))
        finally:
            chat.close()


def test_the_support_desk_with_a_model_runs(tmp_path: Path) -> None:
    command = (
        'spade-coreason ask support "Can I return a new bicycle?"\n…\nI know only what you tell me…\n…\nSource: returns.md'
    )
    with scripted_model(tmp_path) as environment:
        up = "spade-coreason up -c with_model.yaml &"
        with running_example("support_desk", tmp_path / "page", up, command, environment=environment):
            pass


@pytest.mark.servers
async def test_the_refund_desk_pays_clara_when_felix_has_approved_it(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    codes: dict[str, str] = {}
    with running_example("refund_desk", tmp_path, "spade-coreason up -c platform.yaml &") as here:
        run, passwords = (json.loads((here / "data" / name).read_text("utf-8")) for name in ("run.json", "people.json"))
        server = SimpleNamespace(host=run["host"], port=run["port"], ca_file=Path(run["ca_file"]))
        jids = {name: f"{name}@localhost" for name in ("clara", "felix")}
        async with (
            StockClient(jids["clara"], passwords[jids["clara"]], server) as clara,
            StockClient(jids["felix"], passwords[jids["felix"]], server) as felix,
        ):
            people = {"clara": clara, "felix": felix}
            for speaker, lines in transcript("refund_desk"):
                if speaker in people:
                    people[speaker].send(_with_codes("\n".join(lines), codes), "refunds@localhost")
                    continue
                body = (await people[speaker.removeprefix("to ")].answer())["body"]
                for shown, real in zip(_CODE.findall("\n".join(lines)), _CODE.findall(body), strict=True):
                    codes[shown[1]] = real[1]
                check_text(_with_codes("\n".join(lines), codes).splitlines(), body)
        [paid] = json.loads((here / "data/ledger.json").read_text("utf-8")).values()
        assert paid == {"order": "1002", "amount": 480, "reason": "It is broken"}


_CODE = re.compile(r"(?<=/)(answer|approve|deny) ([A-Z2-9]{4,6})")


def _with_codes(text: str, codes: Mapping[str, str]) -> str:
    """Return a text of a page with the codes of this run."""
    return _CODE.sub(lambda found: f"{found[1]} {codes.get(found[2], found[2])}", text)


def read_url(url: str) -> str:
    """Read a text that a person gets as a link: the private Prosody keeps files."""
    with urlopen(url, timeout=TIMEOUT_S) as file:
        text: str = file.read().decode()
    return text


@pytest.mark.servers
async def test_people_and_the_release_bot_talk_in_the_room(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    room = "releases@muc.localhost"
    joined = "until spade-coreason status -c platform.yaml | grep -q joined; do :; done"
    with running_example("release_bot", tmp_path, "spade-coreason up -c platform.yaml &", joined) as here:
        run = json.loads((here / "data/run.json").read_text(encoding="utf-8"))
        server = SimpleNamespace(host=run["host"], port=run["port"], ca_file=Path(run["ca_file"]))
        account = run["guest"]["jid"], run["guest"]["password"]
        async with StockClient(*account, server) as one, StockClient(*account, server) as two:
            people = {"ada": await Person(one, room, "ada").enter(), "bob": await Person(two, room, "bob").enter()}
            for speaker, lines in transcript("release_bot")[:-1]:
                if speaker in people:
                    people[speaker].say("\n".join(lines))
                else:
                    check_text(lines, (await people["ada"].receive_from(speaker))["body"])
            for step in ("documentation", "announcement"):
                people["bob"].say(f"release-bot: {step} done")
                await people["ada"].receive_from("release-bot")
            notes = await people["ada"].receive_from("release-bot")
            assert "Reminders arrive on time" in await asyncio.to_thread(read_url, notes["body"])


@pytest.mark.servers
async def test_a_ci_system_tells_the_release_bot_which_tells_the_room(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    configuration = "-c with_ci.yaml"
    commands = (
        f"spade-coreason up {configuration} &",
        f"until spade-coreason status {configuration} | grep -q joined; do :; done",
        *(f"spade-coreason webhooks create {name} release-bot --kind {name} {configuration} > {name}.txt" for name in KINDS),
    )
    [port] = find_free_ports(1)
    url = f"http://127.0.0.1:{port}/webhooks"
    with running_example("release_bot", tmp_path, *commands, environment={"SPADE_COREASON_WEB__PORT": str(port)}) as here:
        run = json.loads((here / "data/run.json").read_text(encoding="utf-8"))
        server = SimpleNamespace(host=run["host"], port=run["port"], ca_file=Path(run["ca_file"]))
        async with StockClient(run["guest"]["jid"], run["guest"]["password"], server) as client:
            ada = await Person(client, "releases@muc.localhost", "ada").enter()
            line = transcript("release_bot")[-1][1][0]
            script = ("sh", "tell_room.sh", f"{url}/standard", "standard.txt", line)
            await asyncio.to_thread(subprocess.run, script, cwd=here, check=True, capture_output=True)
            assert (await ada.receive_from("release-bot"))["body"] == line
            page = "https://github.com/octo/hello/actions/runs/1"
            event = {"action": "completed", "workflow_run": {"name": "CI", "conclusion": "failure", "html_url": page}}
            answer = await asyncio.to_thread(send_as_github, f"{url}/github", here / "github.txt", json.dumps(event).encode())
            assert answer.status == 202
            assert (await ada.receive_from("release-bot"))["body"] == f"✘ CI: failure {page}"


KINDS = ("standard", "github")


def send_as_github(url: str, secret_file: Path, body: bytes) -> Any:
    """Send an event as GitHub does (https://docs.github.com/en/webhooks/webhook-events-and-payloads)."""
    digest = hmac.digest(secret_file.read_bytes().strip(), body, "sha256").hex()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "workflow_run",
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-Hub-Signature-256": f"sha256={digest}",
    }
    with urlopen(Request(url, body, headers), timeout=TIMEOUT_S) as answer:
        return answer
