"""The documentation site: it builds strictly and offline, loads nothing from other hosts, can be searched and fits a phone."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT
from tests.docs.site_hooks import example_pages, repository_url
from tests.support.servers.requirements import find_program, require
from tests.support.wait import TIMEOUT_S

pytestmark = pytest.mark.release

BUILD_TIMEOUT_S = 300
CHROMIUM = find_program("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_UNREACHABLE = "http://127.0.0.1:9"
_REPOSITORY = "git.example.org/agents/platform"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. The processes of one test run share it."""
    require("mkdocs", find_spec("mkdocs") is not None, "`pip install -e '.[docs]'` enables this test")
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    directory, log = shared / "site", shared / "site.log"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            log.write_text(build(directory), encoding="utf-8")
    assert not log.read_text(encoding="utf-8"), log.read_text(encoding="utf-8")
    return directory


def build(directory: Path) -> str:
    """Build the site without a network. Return what is wrong with it."""
    offline = {**os.environ, "http_proxy": _UNREACHABLE, "https_proxy": _UNREACHABLE, "NO_MKDOCS_2_WARNING": "1"}
    offline["REPOSITORY_URL"] = f"ssh://git@{_REPOSITORY}.git"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env=offline,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stdout}"


class Resources(HTMLParser):
    """A page, from which the addresses that it loads are read."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        if tag in ("script", "img", "iframe", "source", "audio", "video", "embed") and values.get("src"):
            self.loaded.append(str(values["src"]))
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next") and values.get("href"):
            self.loaded.append(str(values["href"]))
        elif tag == "object" and values.get("data"):
            self.loaded.append(str(values["data"]))


def pages(site: Path) -> list[Path]:
    """Return the built pages."""
    return sorted(site.rglob("*.html"))


def test_a_link_to_a_section_that_is_not_there_stops_the_build_of_make(tmp_path: Path) -> None:
    [options] = re.findall(r"mkdocs build ([^>]*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](#one) and [three](#three)\n", encoding="utf-8")
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": "docs",
        "nav": ["index.md"],
        "plugins": [],
        "hooks": [],
        "watch": [],
    }
    (tmp_path / "mkdocs.yml").write_text(json.dumps({**settings, "theme": {"name": "mkdocs", "custom_dir": "docs"}}))
    command = [sys.executable, "-m", "mkdocs", "build", *options.split(), "-f", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert "there is no such anchor on this page" in done.stderr
    assert "Aborted with 1 warnings" in done.stdout + done.stderr


def test_the_guides_stand_in_groups_that_a_reader_can_take_in() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    [nav] = re.findall(r"^nav:\n.*", settings, re.M | re.S)
    [guides] = [
        next(iter(part.values())) for part in yaml.safe_load(nav)["nav"] if isinstance(part, dict) and "How-to guides" in part
    ]
    groups = {name: pages for group in guides for name, pages in group.items()}
    assert max(map(len, groups.values())) <= 8
    assert {f"how-to/{page}.md" for page in ("doors", "openai", "a2a", "a2a-peers", "mcp-server", "webhooks")} == set(
        groups["HTTP"]
    )


def test_each_page_of_the_documentation_is_built(site: Path) -> None:
    sources = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    sources |= {place.replace("/index.md", ".md") for place in example_pages()}
    built = {
        f"{place}.md" if place != "." else "index.md"
        for place in (str(path.parent.relative_to(site)) for path in pages(site) if path.name == "index.html")
    }
    assert built == sources


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    for page in pages(site):
        for address in Resources(page).loaded:
            parts = urlsplit(address)
            assert not parts.netloc, f"{page}: {address}"
            if page.name == "index.html":
                assert parts.scheme == "data" or (page.parent / parts.path).resolve().is_file(), f"{page}: {address}"
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"url\(['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)", sheet.read_text(encoding="utf-8"))
        assert not [address for pair in addresses for address in pair if address.startswith(("http:", "https:", "//"))], sheet


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://name:password@git.example.org/a/b.git", "https://git.example.org/a/b"),
        ("http://git.example.org:3000/a/b", "http://git.example.org:3000/a/b"),
        ("ssh://git@git.example.org:2222/a/b.git", "https://git.example.org/a/b"),
        ("git@git.example.org:a/b.git", "https://git.example.org/a/b"),
        ("/srv/git/b.git", None),
        ("../b", None),
        ("", None),
    ],
)
def test_the_repository_of_a_remote_has_a_web_address_without_credentials(remote: str, address: str | None) -> None:
    assert repository_url(remote) == address


def test_each_page_links_to_the_repository_and_asks_it_nothing(site: Path) -> None:
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        assert f'<a href="https://{_REPOSITORY}"' in text, page
        assert 'data-md-component="source"' not in text, page  # it would ask the host of the repository for its stars


def test_diagrams_are_drawn_by_the_vendored_library(site: Path) -> None:
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        has_diagram = '<pre class="mermaid">' in text
        assert has_diagram == any(address.endswith("assets/mermaid.min.js") for address in Resources(page).loaded), page
    assert "globalThis" in (site / "assets/mermaid.min.js").read_text(encoding="utf-8")
    assert (DOCS / "assets/mermaid.LICENSE.txt").read_text(encoding="utf-8").startswith("The MIT License")


def test_the_python_api_has_each_public_method(site: Path) -> None:
    ids = Resources(site / "reference/python-api/index.html").ids
    for name in (
        "Response.error",
        "Response.data",
        "Response.ask",
        "Response.step",
        "Session.recall",
        "Session.get",
        "Stream.replace",
        "Peers.ask",
        "Peers.stream",
        "Peers.tell",
        "Files.fetch",
        "Files.upload",
        "AgentTester.restart",
    ):
        assert f"spade_coreason.{name}" in ids, name


_WIDTHS_SCRIPT = """
const brokenWords = (cell) => {
  const texts = cell.ownerDocument.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = cell.ownerDocument.createRange();
  const isBroken = (word) => {
    range.setStart(texts.currentNode, word.index);
    range.setEnd(texts.currentNode, word.index + word[0].length);
    return new Set([...range.getClientRects()].filter((box) => box.width).map((box) => Math.round(box.top))).size > 1;
  };
  const broken = [];
  while (texts.nextNode()) broken.push(...[...texts.currentNode.data.matchAll(/[\\p{L}\\p{N}_]+/gu)].filter(isBroken));
  return broken;
};
const widths = {};
for (const address of ADDRESSES) {
  const frame = document.createElement("iframe");
  frame.style = "width: 375px; height: 800px";
  frame.src = address;
  document.body.append(frame);
  await new Promise((done) => frame.onload = done);
  const page = frame.contentDocument.documentElement;
  const excess = {page: page.scrollWidth - page.clientWidth};
  frame.style.width = "1280px";
  const blocks = [...frame.contentDocument.querySelectorAll("pre > code")];
  excess.code = Math.max(0, ...blocks.map((code) => code.scrollWidth - code.clientWidth));
  excess.broken = [...frame.contentDocument.querySelectorAll(".md-typeset table :is(td, th)")].flatMap(brokenWords).length;
  widths[address] = excess;
  frame.remove();
}
await report(widths);
"""
_SEARCH_SCRIPT = """
const frame = document.createElement("iframe");
frame.style = "width: 1300px; height: 800px";
frame.src = "/?q=agent";
document.body.append(frame);
const select = (selector) => [...frame.contentDocument.querySelectorAll(selector)];
const toPlace = (url) => url.pathname + (url.searchParams.has("question") ? `#${url.searchParams.get("question")}` : url.hash);
const results = () => select(".md-search-result__item > .md-search-result__link");
const until = async (isDone) => { while (!isDone()) await new Promise((done) => setTimeout(done, 10)); };
const type = (text) => {
  const [input] = select("input.md-search__input");
  input.value = text;
  input.dispatchEvent(new Event("keyup"));
};
await until(() => results().length);
const found = {};
const isWithoutResult = () => select(".md-search-result__meta")[0].textContent.includes("No matching");
for (const question of QUESTIONS) {
  type("");
  await until(() => !results().length && !isWithoutResult());
  type(question);
  await until(() => results().length || isWithoutResult());
  found[question] = results().map((link) => toPlace(new URL(link.href)));
}
await report(found);
"""
_QUESTION_SCRIPT = """
const frame = document.createElement("iframe");
frame.src = "/questions/?question=what-is-a-jid&h=jid";
document.body.append(frame);
while (!frame.contentWindow.location.hash) await new Promise((done) => setTimeout(done, 10));
await report(frame.contentWindow.location.hash);
"""
# Questions in the words of users, and the pages that answer them.
QUESTIONS = {
    "How do I stop it answering strangers?": {"how-to/access-and-operators/", "questions/#how-do-i-stop-an-agent-from"},
    "What happens to questions while it is down?": {"questions/#what-happens-to-questions-while"},
    "How do I delete what it knows about me?": {"how-to/retention/", "how-to/commands/"},
    "How does an agent write first?": {"explanation/limits/#agents-that-write-first", "questions/#can-an-agent-write-first"},
    "How do I test a tool call?": {"how-to/fake-model/"},
    "How do I back up a running platform?": {"how-to/backups/"},
    "How do I use PostgreSQL?": {"how-to/postgresql/"},
    "How do I limit the messages of a person?": {"how-to/quotas/", "questions/#how-do-i-limit"},
    "Does it support OMEMO?": {"explanation/limits/#encryption", "questions/#does-it-support-omemo"},
    "How do I add an MCP server?": {"how-to/mcp/"},
    "Which exit codes does ask have?": {"reference/errors-and-exit-codes/", "how-to/terminal/#exit-codes"},
    "How do I start it with systemd?": {"how-to/systemd/"},
    "How do I see the exception of an incident?": {"questions/#how-do-i-see-what-failed"},
    "How does an agent ask another one?": {"tutorial/4-agents-ask-agents/", "questions/#how-does-an-agent-ask"},
    "How do I send a file?": {"how-to/files/"},
    "What survives a restart?": {"questions/#what-does-an-agent-remember", "explanation/"},
    "How do I add my own slash command?": {"how-to/commands/"},
    "Which environment variable overrides a setting?": {"reference/configuration/", "questions/#which-environment-variables"},
    "How do I get the agent into a chat room?": {"how-to/rooms/", "questions/#how-do-i-invite"},
    "How many messages a second can it answer?": {"explanation/performance/", "questions/#how-fast-is-it"},
    "How do I reload my code when I save?": {"how-to/develop-with-reload/"},
    "Can two people share what an agent knows?": {"questions/#can-two-people-share"},
    "How do I rotate an agent's password?": {"questions/#how-do-i-change-or-rotate"},
    "How do I see who talked to my agent?": {"questions/#how-do-i-see-who"},
    "What happens if two people write at once?": {"questions/#what-happens-if-two-people"},
    "Can I run it without make?": {"questions/#can-i-install-and-run-it-without-make"},
    "How do I stream an answer word by word?": {"questions/#how-do-i-stream"},
    "How long are conversations kept?": {"questions/#how-long-are-conversations"},
    "How do I change the log format to JSON?": {"questions/#can-i-change-the-format-of-the-logs", "how-to/monitoring/#the-log"},
    "How do I call an agent from a web application (FastAPI)?": {"questions/#how-do-i-call-an-agent-from-a-web"},
    "How does an agent ask the user a question and wait for the reply?": {"questions/#how-does-an-agent-ask-the-user"},
    "what if the answer takes ten minutes?": {"questions/#what-if-an-answer-takes"},
    "Can it use Anthropic or a local Ollama model?": {"questions/#which-language-models"},
    "How do I put secrets in the configuration?": {"questions/#how-do-i-keep-secrets"},
    "What is a conversation id and who makes it?": {"questions/#what-is-a-conversation-id"},
    "How do agents in two different organisations talk?": {"questions/#can-agents-of-two-organisations"},
    "How do I debug an agent with breakpoints or tracebacks?": {"questions/#how-do-i-debug"},
    "how do I cap tokens?": {"questions/#how-do-i-cap-the-cost", "how-to/guardrails-and-budgets/"},
    "Is data encrypted on disk?": {"questions/#is-data-encrypted"},
    "How do I delete everything about a person (GDPR)?": {"questions/#how-do-i-delete-everything"},
    "How do I run ten agents in one process?": {"questions/#how-do-i-run-several-agents", "questions/#how-many-agents-can"},
    "Does it work on Windows or macOS?": {"explanation/limits/#systems", "questions/#which-python-versions"},
    "How do I write a Discord or Telegram bridge?": {"questions/#does-it-connect-to"},
    "What is the difference between a session and a conversation?": {"questions/#what-is-the-difference"},
    "What does exit code 4 mean?": {"reference/errors-and-exit-codes/", "questions/#what-do-the-exit-codes-mean"},
    "Can two agents share an account?": {"questions/#can-two-agents-share-an-account"},
    "How do I move to another machine?": {"questions/#how-do-i-move"},
    "How do I change the language of the answers?": {"how-to/translations/", "questions/#how-do-i-change-the-language"},
    "How do I use it in a group chat room?": {"how-to/rooms/", "questions/#how-do-i-invite"},
    "How can an operator see what failed yesterday?": {"questions/#how-do-i-see-what-failed"},
    "What if the model is down?": {"questions/#what-happens-if-the-language-model"},
    "How do I schedule something every morning?": {"questions/#can-an-agent-write-first"},
    "self-signed certificate": {"questions/#how-do-i-use-a-server-with-a-self-signed"},
    "how do I give my agent a picture": {"questions/#how-do-i-give-an-agent-a-picture"},
    "how do I cancel a running answer": {"questions/#how-do-i-cancel"},
    "How do I add documents so that it can answer from them?": {"how-to/knowledge/"},
    "My agent does not answer, what now?": {"questions/#why-does-my-agent-not-answer"},
    "store a value": {"questions/#how-does-an-agent-store-a-value"},
    "is there a REST API?": {"questions/#is-there-a-rest-api"},
    "prompt injection": {"questions/#how-does-it-deal-with-prompt-injection"},
    "read receipts": {"questions/#which-xeps-are-supported", "reference/xeps/"},
    "unit tests in CI": {"questions/#how-do-i-run-the-tests"},
    "conversation.retention.days": {"reference/configuration/#conversation-retention-days"},
    "remind me tomorrow morning": {"questions/#can-an-agent-write-first", "explanation/limits/#agents-that-write-first"},
    "own database or HTTP client opened at startup": {"how-to/resources/", "questions/#how-does-an-agent-open"},
    "pass an API key to my agent": {"how-to/resources/", "questions/#how-do-i-pass-an-api-key"},
    "return JSON to my web frontend": {"questions/#how-do-i-return-json"},
    "keep one connection open instead of a login per request": {"questions/#how-do-i-keep-one-connection"},
    "debug print / logging from my agent": {"questions/#how-do-i-debug-with-print"},
    "hot reload": {"how-to/develop-with-reload/", "questions/#can-i-reload"},
    "race when storing a value": {"questions/#is-there-a-race"},
    "how big may a message or stored value be": {"questions/#how-long-may-a-message-be"},
    "only usable by my team": {"questions/#how-do-i-make-an-agent-usable"},
    "what is a JID": {"questions/#what-is-a-jid", "reference/glossary/"},
    "create a self-signed certificate for Prosody": {
        "questions/#how-do-i-create-a-self-signed",
        "how-to/prosody/#a-certificate",
    },
    "share a list between my wife and me": {"questions/#how-do-i-share-a-list"},
    "change the structure of stored variables": {"questions/#how-do-i-change-migrate"},
    "deploy new agent code without downtime": {"questions/#how-do-i-deploy"},
    "where are the logs": {"questions/#where-are-the-logs"},
    "bot stopped answering after 100 messages": {"questions/#my-bot-stopped"},
    "buttons in the chat": {"questions/#how-does-an-agent-ask-the-user"},
    "background job, answer later": {"questions/#can-an-agent-run-a-background-job", "how-to/resources/#work-that"},
    "rotate log files": {"questions/#where-are-the-logs", "how-to/operating/#the-log"},
    "does it listen on a port, firewall": {"questions/#does-it-need-root"},
    "reload configuration without restart": {"questions/#can-i-reload"},
    "how much disk after a year": {"questions/#how-much-disk", "how-to/operating/#how-much-disk"},
    "pg_dump instead of storage backup": {"questions/#can-i-use-pg_dump", "how-to/backups/#postgresql"},
    "what happens when ejabberd restarts": {"questions/#what-happens-when-the-xmpp-server"},
    "postgres password special characters": {"questions/#which-special-characters", "how-to/postgresql/#3-name"},
    "certificate expired or renewed": {"questions/#what-happens-when-the-certificate", "how-to/operating/#certificates"},
    "locked out": {"questions/#am-i-locked-out", "how-to/operating/#lockouts"},
    "fail2ban": {"questions/#am-i-locked-out", "how-to/operating/#lockouts"},
    "somebody floods the bot": {"questions/#a-user-floods"},
    "block a user who sends too many messages": {"questions/#a-user-floods"},
    "where is the data stored on disk": {"questions/#where-is-my-data"},
    "start automatically after reboot": {"questions/#how-do-i-run-it-in-the-background", "how-to/systemd/"},
    "two agents ask each other forever": {"questions/#how-do-i-stop-two-agents", "how-to/ask-many-agents/"},
    "my function throws an exception what does the user see": {"questions/#what-does-a-person-see"},
    "call my agent from a flask website": {"questions/#how-do-i-call-an-agent-from-a-web"},
    "where do I put the system prompt": {"questions/#where-do-i-write-the-system-prompt"},
    "reminder every morning": {"questions/#can-an-agent-write-first", "explanation/limits/#agents-that-write-first"},
    "agent's own SQLite file, in the backup?": {"questions/#is-my-agents-own-sqlite"},
    "maximum length of a message": {"questions/#how-long-may-a-message-be", "how-to/resources/#how-large"},
    "memory grows, limit RAM": {"questions/#its-memory-ram-grows"},
    "remove an agent and its data": {"questions/#how-do-i-remove-an-agent", "how-to/operating/#remove-or-rename"},
    "human must approve before a tool runs": {"questions/#how-must-a-human-approve"},
    "hand the chat over to a real person": {"questions/#how-do-i-hand-the-chat-over"},
    "handover": {"questions/#how-do-i-hand-the-chat-over", "how-to/coming-from-langgraph/#hand-the-chat"},
    "dollars a user costs": {"questions/#how-many-dollars"},
    "use Claude or Gemini": {"questions/#which-language-models"},
    "run my LangGraph graph as an agent": {"questions/#how-do-i-run-my-langgraph", "how-to/coming-from-langgraph/"},
    "long-term memory across conversations for a user": {"questions/#how-does-an-agent-remember-a-customer"},
    "supervisor that delegates": {"questions/#can-a-supervisor", "how-to/coming-from-langgraph/#a-supervisor"},
    "stop two agents talking endlessly": {"questions/#how-do-i-stop-two-agents"},
    "evaluate answers after changing a prompt": {"questions/#how-do-i-evaluate"},
    "trace LLM calls with OpenTelemetry": {"questions/#how-do-i-trace"},
    "tool takes five minutes": {"questions/#my-tool-takes"},
    "send an image to the model": {"questions/#can-i-send-an-image"},
    "change the system prompt without restart": {"questions/#can-i-change-the-system-prompt"},
    "conversation too long for the context window": {"questions/#what-if-the-conversation-is-too-long"},
    "pydantic structured output": {"questions/#how-do-i-get-structured-output", "how-to/manifests/"},
    "what the model sees when my tool raises": {"questions/#what-does-the-model-see"},
    "set temperature and max tokens": {"questions/#how-do-i-set-temperature"},
    "remind the user tomorrow": {"questions/#can-an-agent-write-first"},
    "timezone": {"questions/#in-which-timezone"},
    "pg_dump": {"questions/#can-i-use-pg_dump", "how-to/backups/"},
    "restore when only the database was lost": {"questions/#how-do-i-restore-when-only"},
    "does the agent know that an operator is asking": {"questions/#how-does-my-agent-know-that-an-operator"},
    "How do I migrate from sqlite to postgres?": {"questions/#how-do-i-move-migrate", "how-to/postgresql/"},
    "it forgets everything after restart": {"questions/#what-does-an-agent-remember"},
    "run in the background as a daemon": {"how-to/systemd/"},
    "who is allowed to talk with the bot?": {"how-to/access-and-operators/"},
    "can the bot greet new users?": {"questions/#can-an-agent-write-first"},
    "show typing indicator": {"questions/#how-do-people-see-that"},
    "rate limiting": {"how-to/interceptors/", "how-to/quotas/"},
    "how to unit test my bot without server": {"how-to/testing-agents/"},
    "docker-compose example": {"how-to/docker/"},
    "my agent crashed the whole process": {"how-to/isolation/"},
    "isolate an agent": {"how-to/isolation/"},
    "the model hallucinates, how do I give it my documents?": {"how-to/knowledge/"},
    "ban a user": {"questions/#how-do-i-block-a-user"},
    "change max_interactions": {"questions/#my-bot-stopped"},
    "multi-tenant: separate customers": {"questions/#how-do-i-keep-customers-apart"},
    "upgrade to a new version and roll back": {"how-to/upgrading/"},
    "Does it scale horizontally?": {"questions/#can-i-run-two-platforms"},
    "voice messages": {"questions/#does-it-support-voice"},
    "connect two servers federation": {"questions/#can-agents-of-two-organisations"},
    "postgers": {"how-to/postgresql/"},
    "ask from a shell script": {"questions/#how-do-i-ask-an-agent-from-a-shell"},
    "how do I stop the platform cleanly": {"questions/#how-do-i-stop-the-platform-cleanly"},
    "run blocking code": {"questions/#my-agent-blocks"},
    "webhooks": {"questions/#can-a-webhook"},
    "orchestrator": {"questions/#can-a-supervisor"},
    "GDPR export": {"questions/#how-does-a-person-get-export"},
    "throttle LLM spending per user": {"questions/#how-do-i-cap-the-cost", "how-to/guardrails-and-budgets/", "how-to/quotas/"},
    "nagios xyzzy check": {"questions/#how-do-i-see-the-state-of-a-platform"},
    "what is an agent doing now": {"questions/#what-is-an-agent-doing-now", "reference/operations/#status"},
    "run two workers": {"how-to/workers/", "questions/#can-i-run-two-platforms"},
    "picture to the model": {"how-to/language-models/#show-pictures", "questions/#can-i-send-an-image"},
    "Does it work with Open WebUI?": {
        "questions/#can-i-chat-in-the-browser",
        "how-to/doors/",
        "how-to/openai/",
        "how-to/open-webui/",
    },
    "A2A": {"how-to/doors/", "how-to/a2a/", "how-to/a2a-peers/"},
    "Can another framework's agent call mine over A2A?": {"how-to/doors/", "how-to/a2a/"},
    "How do I reach it over HTTP?": {"how-to/doors/", "questions/#can-a-webhook"},
    "Is there an OpenAI compatible endpoint?": {"how-to/doors/", "how-to/openai/"},
    "Can my editor ask an agent through MCP?": {"how-to/doors/", "how-to/mcp-server/"},
    "What if the machine fails, is there high availability?": {"how-to/workers/", "questions/#can-i-run-two-platforms"},
    "Can it run on two servers with failover?": {"how-to/workers/", "how-to/ejabberd-cluster/"},
    "How do I send a daily report at 8?": {"how-to/write-first/", "questions/#can-an-agent-write-first"},
    "Can the agent wait for the approval of my boss?": {"how-to/ask-a-person/", "questions/#how-must-a-human-approve"},
    "notify me when the job is done": {"how-to/write-first/", "questions/#can-an-agent-run-a-background-job"},
    "Which questions are waiting right now?": {
        "questions/#what-is-an-agent-doing-now",
        "how-to/monitoring/",
        "how-to/ask-a-person/",
        "questions/#which-questions-are-waiting",
    },
    "How do I pause an agent during maintenance?": {"questions/#how-do-i-pause-an-agent"},
    "How do I drain it before an upgrade?": {"questions/#how-do-i-pause-an-agent", "how-to/upgrading/"},
    "How do I turn on debug logging while it runs?": {"questions/#how-do-i-turn-on-debug-logging"},
    "How do I delete one conversation of a user?": {"questions/#how-do-i-delete-one-conversation"},
    "Who admitted this person, and when?": {"questions/#is-there-an-audit-log", "how-to/access-and-operators/"},
    "How do I try an upload on my laptop?": {"how-to/files/", "questions/#how-does-an-agent-send-a-file"},
    "my file server has a certificate of our own CA": {"how-to/files/", "questions/#how-do-i-use-a-server-with-a-self-signed"},
    "How do I keep strangers from even knowing that the bot exists?": {
        "how-to/access-and-operators/",
        "questions/#how-do-i-stop-an-agent-from",
    },
    "How do I protect my wallet from a chatty user?": {"how-to/guardrails-and-budgets/", "questions/#how-do-i-cap-the-cost"},
    "bearer token": {"how-to/doors/"},
    "How do I expose an agent as an API?": {"how-to/doors/", "how-to/openai/"},
    "port in use": {"how-to/doors/", "questions/#the-port-is-in-use"},
    "model_not_found": {"how-to/openai/", "questions/#why-does-a-client-get-model_not_found"},
    "PeerTimeoutError": {"tutorial/4-agents-ask-agents/", "how-to/testing-agents/#problems"},
    "web interface": {"questions/#can-i-chat-in-the-browser"},
}
# Questions whose right page is the first result.
FIRST = {
    "what is it doing now": "questions/#what-is-an-agent-doing-now",
    "import old data": "questions/#can-i-import-old-data",
    "never forgets a customer": "questions/#how-does-an-agent-remember-a-customer",
    "another language than Python": "questions/#can-i-use-another-language-than-python",
    "leaking secrets": "questions/#how-do-i-keep-an-agent-from-leaking-secrets",
    "redact secrets": "questions/#how-do-i-keep-an-agent-from-leaking-secrets",
    "one conversation on phone and in Open WebUI": "questions/#can-i-continue-one-conversation-on-my-phone",
    "human in the loop": "questions/#how-must-a-human-approve",
    "open telemetry": "questions/#how-do-i-trace",
    "whatsapp": "questions/#does-it-connect-to-whatsapp",
    "route to one of three agents": "questions/#how-do-i-route-a-request-to-one-of-three-agents",
}


@contextmanager
def serve(site: Path, script: str, reports: Queue[Any]) -> Iterator[str]:
    """Serve the site and a page with a script, and yield the address of that page. `reports` gets what the script reports."""
    report = 'const report = (value) => fetch("/report", {method: "POST", body: JSON.stringify(value)});'
    page = f"<!doctype html><body><script type='module'>{report}{script}</script></body>".encode()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/script":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def do_POST(self) -> None:
            reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/script"
        server.shutdown()


def run_in_browser(site: Path, profile: Path, script: str) -> Any:
    """Run a script beside the site in a browser. Return what it reports."""
    require("Chromium", CHROMIUM is not None, "`make browser` enables this test")
    reports: Queue[Any] = Queue()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
    with serve(site, script, reports) as address:
        command = [str(CHROMIUM), *options, f"--user-data-dir={profile}", address]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return reports.get(timeout=4 * TIMEOUT_S)
        finally:
            browser.terminate()
            browser.wait(TIMEOUT_S)


def test_no_page_scrolls_sideways_on_a_phone_and_no_code_or_word_of_a_table_is_cut_on_a_laptop(
    site: Path, tmp_path: Path
) -> None:
    addresses = [f"/{path.parent.relative_to(site)}/" for path in pages(site) if path.name == "index.html"]
    widths = run_in_browser(site, tmp_path, _WIDTHS_SCRIPT.replace("ADDRESSES", json.dumps(addresses)))
    assert len(widths) == len(addresses)
    assert {place: excess for place, excess in widths.items() if max(excess.values()) > 0} == {}


def test_the_search_answers_questions_of_users(site: Path, tmp_path: Path) -> None:
    found = run_in_browser(site, tmp_path, _SEARCH_SCRIPT.replace("QUESTIONS", json.dumps([*QUESTIONS, *FIRST])))
    missed = {}
    for question, expected in QUESTIONS.items():
        first = [place.removeprefix("/") for place in found[question]][:4]
        if not any(place.startswith(page) for place in first for page in expected):
            missed[question] = first
    assert missed == {}
    assert {
        question: found[question][:1] for question, page in FIRST.items() if not found[question][0].startswith(f"/{page}")
    } == {}
    assert not any(place.removeprefix("/") == "questions/" for places in found.values() for place in places)


def test_the_result_of_a_question_leads_to_its_place_on_the_page(site: Path, tmp_path: Path) -> None:
    assert run_in_browser(site, tmp_path, _QUESTION_SCRIPT) == "#what-is-a-jid"
