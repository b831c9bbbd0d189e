"""The pictures of the page in the browser: a real platform on the embedded server, and two people in a real browser.

Clara sends an order back and says why, and Felix approves the refund on his phone. Clara gets her receipt, and a reminder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.program import COMMAND, clean_environment
from tests.support.servers.requirements import find_program

from .scenario import ROOT

PICTURES = ("docs/assets/page.png", "docs/assets/page-approval.png")
SHOWS = ("examples/refund_desk/refund_desk.py", "spade_coreason/doors/page", "tests/docs/pictures/page.py")
_CLARA, _FELIX = "clara@localhost", "felix@localhost"
_CONFIGURATION = f"""\
server: {{mode: embedded, people: [{_CLARA}, {_FELIX}]}}
access: {{groups: {{finance: [{_FELIX}]}}}}
agents:
  - {{jid: notes@localhost, agent: "spade_coreason.agents.notes:NotesAgent"}}
  - {{jid: refunds@localhost, agent: "refund_desk:RefundDesk", options: {{ledger: ledger.json}}}}
"""
_WIDE: dict[str, Any] = {"viewport": {"width": 960, "height": 540}, "color_scheme": "light"}
_PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 740},
    "color_scheme": "dark",
    "is_mobile": True,
    "has_touch": True,
}
_COLOURS = 64
_WAIT_S = 30


def take() -> None:
    """Take both pictures. An AssertionError of Playwright names what does not appear."""
    expect.set_options(timeout=_WAIT_S * 1000)
    with TemporaryDirectory() as name, _platform(Path(name)) as links, sync_playwright() as playwright:
        chromium = find_program("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"] if os.getuid() == 0 else [])
        clara, felix = (_log_in(browser, links[who], size) for who, size in ((_CLARA, _WIDE), (_FELIX, _PHONE)))
        _say(clara, "refunds", "I want to send something back")
        expect(clara.locator("#log .it").last).to_contain_text("Which order?")
        _say(clara, "refunds", "1003 please")
        clara.get_by_role("button", name="It is broken").click()
        expect(clara.locator("#log .it").last).to_contain_text("approval of finance")
        approve = felix.get_by_role("button", name="Approve")
        expect(approve).to_be_visible()
        _save(felix, PICTURES[1])
        approve.click()
        expect(clara.locator("#log .it").last).to_contain_text("Your receipt is")
        expect(clara.locator("#log .live")).to_have_count(0)  # it is stored, and read
        _say(clara, "notes", "remind me in 5 seconds to take the parcel to the post")
        expect(clara.locator("#log .it").last).to_contain_text("remind")
        clara.locator("#agents a", has_text="refunds").click()
        expect(clara.locator("#conversations a", has_text="notes").locator("b")).to_be_visible()
        _save(clara, PICTURES[0])
        browser.close()


@contextmanager
def _platform(directory: Path) -> Iterator[dict[str, str]]:
    """Run the platform, and yield a link for each person."""
    [port] = find_free_ports(1)
    (directory / "platform.yaml").write_text(_CONFIGURATION, encoding="utf-8")
    shutil.copy(ROOT / SHOWS[0], directory)
    environment = clean_environment({"SPADE_COREASON_WEB__PORT": str(port), "PYTHONUNBUFFERED": "1"})
    options: dict[str, Any] = {"cwd": directory, "env": environment, "text": True, "stdout": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, "up", "-c", "platform.yaml"], stderr=subprocess.DEVNULL, **options) as platform:
        try:
            assert platform.stdout is not None
            if not any(line.startswith("Ready") for line in platform.stdout):
                sys.exit("error: the platform does not start")
            yield {who: _make_link(who, options) for who in (_CLARA, _FELIX)}
        finally:
            platform.terminate()


def _make_link(who: str, options: dict[str, Any]) -> str:
    command = [*COMMAND, "web", who, "-c", "platform.yaml"]
    return str(subprocess.run(command, check=True, timeout=_WAIT_S, **options).stdout).strip()


def _log_in(browser: Browser, link: str, size: dict[str, Any]) -> Page:
    page = browser.new_context(locale="en-GB", timezone_id="UTC", **size).new_page()
    page.goto(link)
    page.locator("#go").click()
    expect(page.locator("#title")).not_to_be_empty()
    return page


def _say(page: Page, agent: str, text: str) -> None:
    page.locator("#agents a", has_text=agent).click()
    page.locator("#text").fill(text)
    page.keyboard.press("Enter")


def _save(page: Page, picture: str) -> None:
    """Save what the page shows, with few colours: it is small, and sharp in the places that count."""
    with Image.open(BytesIO(page.screenshot(animations="disabled", caret="hide"))) as image:
        image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(ROOT / picture, optimize=True)
