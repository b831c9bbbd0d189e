"""The servers that the package starts: features, accounts, and their end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
import sys
import textwrap
import time
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

from spade_coreason.exceptions import ServerError
from spade_coreason.xmpp.servers.bare_stream import StreamError, open_bare_stream
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.embedded import EMBEDDED_PROGRAM, run_embedded_server
from spade_coreason.xmpp.servers.process import LOOPBACK, AddressInUseError, LaunchSpec, is_port_free, run_server_process
from spade_coreason.xmpp.servers.prosody import ProsodyServer, find_prosody, run_prosody_server
from spade_coreason.xmpp.servers.selection import run_local_server, select_server
from spade_coreason.xmpp.servers.server import LocalServer, ServerKind
from tests.support.servers.clients import StockClient
from tests.support.servers.processes import group_members, listening_addresses, remaining_members, wait_until_ended
from tests.support.servers.requirements import require
from tests.support.wait import TIMEOUT_S
from tests.support.warm import NAME_VARIABLE

PASSWORD = "pässwörd ⅷ"
"""A password that SASLprep changes: Ⅷ becomes viii."""


def pid_of(server: LocalServer) -> int:
    """Return the process id of a server that this process has started."""
    assert server.process is not None
    return server.process.pid


@pytest.fixture(autouse=True)
def cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the embedded server as people do: without the fork of other tests."""
    monkeypatch.delenv(NAME_VARIABLE)


@pytest.fixture(params=["prosody", "embedded"])
def kind(request: pytest.FixtureRequest) -> ServerKind:
    if request.param == "prosody":
        require("Prosody", find_prosody() is not None)
    kind: ServerKind = request.param
    return kind


@pytest.fixture
def prosody(tmp_path: Path) -> AbstractAsyncContextManager[ProsodyServer]:
    require("Prosody", find_prosody() is not None)
    return run_prosody_server(tmp_path)


async def test_a_stock_client_logs_in_and_the_server_ends_with_its_block(kind: ServerKind, tmp_path: Path) -> None:
    async with run_local_server(kind, tmp_path) as server:
        assert (server.kind, server.host, server.domain) == (kind, LOOPBACK, "localhost")
        await server.create_account("Änne.b@localhost", PASSWORD)
        async with StockClient("änne.b@localhost", PASSWORD, server) as anne:
            anne.send("to myself", "änne.b@localhost")
            assert (await anne.answer())["body"] == "to myself"
    assert remaining_members(pid_of(server)) == []
    assert is_port_free(server.port)


async def test_nothing_but_loopback_can_reach_it(kind: ServerKind, tmp_path: Path) -> None:
    async with run_local_server(kind, tmp_path) as server:
        await server.create_account("a@localhost", "a")  # whatever is started late, is there now
        addresses = listening_addresses(pid_of(server))
        assert (LOOPBACK, server.port) in addresses
        assert {address for address, _ in addresses} == {LOOPBACK}
        assert len(addresses) == (2 if kind == "prosody" else 1)  # Prosody's second is the WebSocket


async def test_it_keeps_its_port_over_restarts_while_nobody_else_takes_it(kind: ServerKind, tmp_path: Path) -> None:
    async with run_local_server(kind, tmp_path) as first:
        pass
    async with run_local_server(kind, tmp_path) as second:
        assert second.port == first.port
    with socket.create_server((LOOPBACK, first.port)):
        async with run_local_server(kind, tmp_path) as third:
            assert third.port != first.port


async def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_names_it(kind: ServerKind, tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} on 127.0.0.1 is in use"):
            async with run_local_server(kind, tmp_path, port=port):
                pass
    async with run_local_server(kind, tmp_path, port=port) as server:
        assert server.port == port


async def test_the_end_of_the_server_is_reported(kind: ServerKind, tmp_path: Path) -> None:
    async with run_local_server(kind, tmp_path) as server:
        end_task = asyncio.create_task(server.wait_until_ended())
        os.kill(pid_of(server), signal.SIGKILL)
        end_reason = await asyncio.wait_for(end_task, TIMEOUT_S)
    assert "ended by signal 9" in end_reason
    assert str(tmp_path) in end_reason


async def test_a_second_server_on_the_same_directory_says_so(kind: ServerKind, tmp_path: Path) -> None:
    async with run_local_server(kind, tmp_path):
        with pytest.raises(ServerError, match="an earlier server that still runs"):
            async with run_local_server(kind, tmp_path, timeout_s=0.3):
                pass


STARTER = """
    import asyncio, os, pathlib, sys
    from spade_coreason.xmpp.servers.selection import run_local_server

    async def main():
        async with run_local_server(sys.argv[1], pathlib.Path(sys.argv[2])) as server:
            child = os.fork() if len(sys.argv) > 3 else -1
            if child == 0:
                os.close(1)
                os.read(os.pipe()[0], 1)  # for ever
            print(server.process.pid, child, flush=True)
            await server.wait_until_ended()

    asyncio.run(main())
"""


async def start_in_process(kind: ServerKind, directory: Path, *more: str) -> tuple[asyncio.subprocess.Process, int, int]:
    """Start a Python process that runs a server. Return the process, the server's process id and that of its fork."""
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(STARTER), kind, str(directory), *more, stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    pid, child = (await asyncio.wait_for(starter.stdout.readline(), TIMEOUT_S)).split()
    return starter, int(pid), int(child)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_it_ends_when_its_starter_is_killed_with_kill_9(kind: ServerKind, tmp_path: Path) -> None:
    starter, pid, _ = await start_in_process(kind, tmp_path)
    assert group_members(pid)
    starter.kill()
    await starter.wait()
    assert await wait_until_ended(pid, TIMEOUT_S)
    async with run_local_server(kind, tmp_path):  # waits for whatever is left of the first
        assert remaining_members(pid) == []


async def test_it_ends_when_its_lifeline_is_killed_too(kind: ServerKind, tmp_path: Path) -> None:
    starter, pid, _ = await start_in_process(kind, tmp_path)
    [address, *_] = listening_addresses(pid)
    os.kill(parent_of(pid), signal.SIGKILL)
    starter.kill()
    await starter.wait()
    deadline = time.monotonic() + TIMEOUT_S
    while not await wait_until_ended(pid, 1.0):  # an idle Prosody may notice the signal at its next event only: this connection
        assert time.monotonic() < deadline
        with suppress(OSError):
            socket.create_connection(address, 1.0).close()


async def test_it_ends_even_if_a_fork_of_its_starter_lives_on(tmp_path: Path) -> None:
    starter, pid, child = await start_in_process("embedded", tmp_path, "fork")
    try:
        starter.kill()
        await starter.wait()
        assert await wait_until_ended(pid, TIMEOUT_S)
    finally:
        os.kill(child, signal.SIGKILL)


STUBBORN = """#!/bin/sh
trap '' TERM
sh -c 'trap "" TERM; while :; do sleep 60; done' &
while :; do sleep 60; done
"""


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


async def test_a_program_that_hangs_is_an_error_in_time_and_leaves_nothing_behind(tmp_path: Path) -> None:
    program = script(tmp_path / "stubborn", STUBBORN.replace("trap", f"echo $$ >>{tmp_path}/pid; trap", 1))
    pid = tmp_path / "pid"
    pid.touch()
    for timeout_s in (0.3, 3.0, 30.0):  # on a busy machine it takes a while until the program has begun
        with pytest.raises(ServerError) as caught:
            async with run_prosody_server(tmp_path / "server", program=program, timeout_s=timeout_s):
                pass
        if pid.read_text() and "did not answer" in str(caught.value):  # else it had not begun
            break
    assert re.search(rf"Prosody did not answer on 127.0.0.1:\d+ within {timeout_s:g} s", str(caught.value))
    assert all(remaining_members(int(line)) == [] for line in pid.read_text().split())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho 'error: no such thing as Lua'; echo bye; exit 3", "with status 3: error: no such thing as Lua"),
        ("#!/bin/sh\nexit 1", "with status 1: its log is empty"),
        ("#!/no/such/interpreter", "No such file or directory"),
    ],
)
async def test_a_program_that_ends_at_once_is_an_error_that_says_why(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=reason) as caught:
        async with run_prosody_server(tmp_path / "server", program=script(tmp_path / "broken", text)):
            pass
    assert "\n" not in str(caught.value)


async def test_another_server_that_answers_on_its_port_is_not_taken_for_it(kind: ServerKind, tmp_path: Path) -> None:
    async with run_local_server(kind, tmp_path / "other") as other:
        ours = LaunchSpec(
            name="Prosody",
            command=("sleep", "60"),
            directory=tmp_path,
            log=tmp_path / "prosody.log",
            port=other.port,
            domain="localhost",
            certificate=ensure_certificate(tmp_path / "certs", ("localhost",)),
        )
        with pytest.raises(AddressInUseError, match=f"another server answers on port {other.port}"):
            async with run_server_process(ours):
                pass


@pytest.mark.servers
@pytest.mark.parametrize(
    "problem",
    [
        "Address already in use",
        "this port is in use by another application",
        "check that Prosody or another XMPP server is not already running and using this port",
        "check that Prosody or a BOSH connection manager is not already running",
    ],
)
async def test_a_port_that_is_taken_at_the_start_is_replaced_by_another(problem: str, tmp_path: Path) -> None:
    require("Prosody", find_prosody() is not None)
    program = script(
        tmp_path / "unlucky",
        f"""#!/bin/sh
        [ -e {tmp_path}/tried ] && exec prosody "$@"
        touch {tmp_path}/tried
        echo "error: Failed to open server port 12345 on 127.0.0.1, {problem}"
        exec sleep 60
        """,
    )
    async with run_prosody_server(tmp_path / "server", program=program) as server:
        assert (tmp_path / "tried").exists()
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.close()


async def test_the_embedded_server_says_that_its_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        certificate = ensure_certificate(tmp_path, ("localhost",))
        port = str(other.getsockname()[1])
        command = (sys.executable, "-P", str(EMBEDDED_PROGRAM), str(tmp_path), "localhost", port)
        start = LaunchSpec("it", command, tmp_path, tmp_path / "log", int(port), "localhost", certificate)
        with pytest.raises(AddressInUseError, match="address already in use"):
            async with run_server_process(start):
                pass


# Prosody, managed


@pytest.mark.servers
async def test_prosody_takes_no_registrations(prosody: AbstractAsyncContextManager[ProsodyServer]) -> None:
    async with prosody as server:
        context = ssl.create_default_context(cafile=server.ca_file)
        async with open_bare_stream(server.host, server.port, server.domain, context) as stream:
            with pytest.raises(StreamError):
                await stream.register("mallory", "m")
        with pytest.raises(PermissionError):
            await StockClient("mallory@localhost", "m", server).connect()


@pytest.mark.servers
async def test_prosodys_accounts_can_be_given_another_password(
    prosody: AbstractAsyncContextManager[ProsodyServer],
) -> None:
    async with prosody as server:
        await server.create_account("bob@localhost", "old")
        await server.create_account("bob@localhost", "new")
        with pytest.raises(PermissionError):
            await StockClient("bob@localhost", "old", server).connect()
        async with StockClient("bob@localhost", "new", server):
            pass


@pytest.mark.servers
async def test_prosodys_accounts_and_offline_messages_last_over_a_restart(tmp_path: Path) -> None:
    require("Prosody", find_prosody() is not None)
    async with run_prosody_server(tmp_path) as server:
        for user in ("a@localhost", "b@localhost"):
            await server.create_account(user, "secret")
        async with StockClient("a@localhost", "secret", server) as a:
            a.send("for later", "b@localhost")
            a.send("and for me", "a@localhost")
            await a.answer()  # the server has both
    async with run_prosody_server(tmp_path) as server, StockClient("b@localhost", "secret", server) as b:
        assert (await b.answer())["body"] == "for later"


@pytest.mark.servers
async def test_prosody_has_rooms_commands_and_an_archive(prosody: AbstractAsyncContextManager[ProsodyServer]) -> None:
    async with prosody as server:
        await server.create_account("a@localhost", "secret")
        async with StockClient("a@localhost", "secret", server, plugins=["xep_0030"], smacks=True) as a:
            disco = a.xmpp.plugin["xep_0030"]
            server_features = (await disco.get_info(jid="localhost", timeout=TIMEOUT_S))["disco_info"]["features"]
            account_features = (await disco.get_info(jid="a@localhost", timeout=TIMEOUT_S))["disco_info"]["features"]
            rooms_features = (await disco.get_info(jid=server.rooms_domain, timeout=TIMEOUT_S))["disco_info"]["features"]
            assert {
                "http://jabber.org/protocol/commands",
                "urn:xmpp:carbons:2",
                "vcard-temp",
                "urn:xmpp:blocking",
            } <= server_features
            assert {"urn:xmpp:mam:2", "http://jabber.org/protocol/pubsub#publish"} <= account_features
            assert "http://jabber.org/protocol/muc" in rooms_features
            assert a.xmpp.plugin["xep_0198"].sm_id


@pytest.mark.servers
async def test_prosody_answers_on_a_websocket(prosody: AbstractAsyncContextManager[ProsodyServer]) -> None:
    async with prosody as server:
        address, path = server.websocket_url.removeprefix("ws://").split("/", 1)
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Protocol: xmpp\r\n\r\n".encode()
        )
        assert b" 101 " in await asyncio.wait_for(reader.readline(), TIMEOUT_S)
        writer.close()


@pytest.mark.servers
async def test_prosody_archives_without_sqlite_too(tmp_path: Path) -> None:
    """A wrapper hides which Lua runs; Prosody's own storage is always available."""
    require("Prosody", find_prosody() is not None)
    wrapper = script(tmp_path / "wrapper", f'#!/bin/sh\nexec {find_prosody()} "$@"')
    async with run_prosody_server(tmp_path / 'a "quoted" \\ directory', program=wrapper) as server:
        await server.create_account("a@localhost", "secret")
        async with StockClient("a@localhost", "secret", server, plugins=["xep_0313"]) as a:
            a.send("keep this", "a@localhost")
            await a.answer()
            archive = await a.xmpp.plugin["xep_0313"].retrieve(timeout=TIMEOUT_S)
            kept = [each["mam_result"]["forwarded"]["stanza"]["body"] for each in archive["mam"]["results"]]
            assert "keep this" in kept


async def test_only_jids_that_the_server_can_have_become_accounts(kind: ServerKind, tmp_path: Path) -> None:
    async with run_local_server(kind, tmp_path) as server:
        for jid in ("a@example.org", "localhost", "@localhost", "a b@localhost", "../a@localhost", "a\0@localhost"):
            with pytest.raises(ServerError):
                await server.create_account(jid, "secret")
        for password in ("", "\0", "\N{SOFT HYPHEN}"):
            with pytest.raises(ServerError, match="password"):
                await server.create_account("a@localhost", password)


# The embedded server


async def test_a_quick_client_never_hangs_after_starttls(tmp_path: Path) -> None:
    """pyjabber by itself loses about one connection in fifty to slixmpp, and nearly all to a client without its delays."""
    async with run_embedded_server(tmp_path) as server:
        context = ssl.create_default_context(cafile=server.ca_file)
        for _ in range(100):
            async with asyncio.timeout(TIMEOUT_S), open_bare_stream(server.host, server.port, server.domain, context):
                pass


async def test_an_account_that_is_there_is_no_error_on_the_embedded_server(tmp_path: Path) -> None:
    async with run_embedded_server(tmp_path) as server:
        await server.create_account("a@localhost", "secret")
        await server.create_account("a@localhost", "other")
        async with StockClient("a@localhost", "secret", server):
            pass


# The choice


def test_auto_selects_prosody_if_installed_and_else_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without = select_server("auto")
    assert without.kind == "embedded"
    assert without.notice is not None
    assert "apt install prosody" in without.notice
    assert "forged" in without.notice
    with pytest.raises(ServerError, match="apt install prosody"):
        select_server("prosody")
    script(tmp_path / "prosody", "#!/bin/sh")
    assert select_server("auto").kind == select_server("prosody").kind == "prosody"
    assert select_server("auto").notice is None
    assert select_server("embedded").kind == "embedded"
