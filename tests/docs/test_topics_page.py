"""What the page about topics says of publish-subscribe services of servers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, check_output, read_console, read_page
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S


@pytest.mark.release
async def test_the_program_about_xep_0060_prints_what_the_page_says(ejabberd: XmppServer, tmp_path: Path) -> None:
    page = read_page(DOCS / "how-to" / "topics.md")
    [program] = [block.text for block in page.blocks if block.title == "pubsub.py"]
    [(command, output)] = [pair for block in page.blocks if block.rule == "not run" for pair in read_console(block.text)]
    file = tmp_path / "pubsub.py"
    file.write_text(program)
    jid, password = await ejabberd.account()
    account = {"XMPP_JID": jid, "XMPP_PASSWORD": password, "XMPP_CA_FILE": str(ejabberd.ca_file)}
    address = {"XMPP_HOST": ejabberd.host, "XMPP_PORT": str(ejabberd.port)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, file, env={**os.environ, **account, **address}, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    check_output(command, output, printed.decode())
