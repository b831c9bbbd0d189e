"""Connecting ends in time and says what is wrong. A connection reports its state and reconnects by itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import ConnectError, LoginError, StoreError
from spade_coreason.runtime import AgentNetwork, AgentRuntime, OutboundMessage, UploadFile
from spade_coreason.storage import AgentRepository, Commit, open_database
from spade_coreason.xmpp.connection.connection import Connection
from spade_coreason.xmpp.connection.endpoint import ServerEndpoint
from spade_coreason.xmpp.connection.errors import explain
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.connection.session_handler import SessionHandler
from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.servers.certificate import CertificateFiles, ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.clock import LoopClock
from tests.support.errors import ExpectedErrors
from tests.support.hosting import UNLIMITED, Echo, FunctionAgent, OnlineAgent, Tunnel, endpoint_of, run_agent
from tests.support.runner import make_runtime
from tests.support.servers import ejabberd as ejabberd_server, prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.requirements import require
from tests.support.servers.scripted import BIND, SASL, STARTTLS, Peer, mechanisms, run_script, server_context
from tests.support.servers.server import XmppServer
from tests.support.transports import STANZA_BYTES
from tests.support.wait import TIMEOUT_S, eventually

DTD = "<?xml version='1.0'?><!DOCTYPE l [<!ENTITY i 'ha'>]>"
REMEDY = "check that the server is running, and check host and port"
TLS = "urn:ietf:params:xml:ns:xmpp-tls"
STREAM = (
    "<stream:stream xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' version='1.0' id='x'"
    " from='localhost'>"
)


async def _start(jid: str, password: str, endpoint: ServerEndpoint, tmp_path: Path, *, register: bool = False) -> HostedAgent:
    database = await open_database(f"sqlite+aiosqlite:///{tmp_path}/connect.db", "normal")
    try:

        def build(network: AgentNetwork, upload: UploadFile) -> AgentRuntime:
            return make_runtime(Echo(), AgentRepository(database, jid), network, upload=upload)

        host = HostedAgent(Login(jid, password, register), endpoint, build, stanza_bytes=STANZA_BYTES)
        await host.start()
        return host
    finally:
        await database.close()


async def _connect_error(
    endpoint: ServerEndpoint,
    tmp_path: Path,
    account: tuple[str, str] = ("a@localhost", "x"),
    *,
    register: bool = False,
    after: asyncio.Event | None = None,
    is_transient: bool = True,
) -> str:
    """Start an agent that cannot connect; return the one line of its error, which must be as transient as announced.

    The error comes without any time passing; with `after`, when the endpoint's timeout has passed after that event.
    """
    with LoopClock() as clock:
        starting = asyncio.create_task(_start(*account, endpoint, tmp_path, register=register))
        if after is not None:
            await after.wait()
            await clock.advance(0.9 * endpoint.timeout_s)
            assert not starting.done()
            await clock.advance(0.1 * endpoint.timeout_s)
        await clock.wait_for(starting.done)
    with pytest.raises(ConnectError) as failed:
        await starting
    text = str(failed.value)
    assert failed.value.is_transient is is_transient
    assert text.startswith(account[0])
    assert "\n" not in text
    assert len(asyncio.all_tasks()) == 1  # nothing goes on behind our back
    return text


async def test_a_closed_port_is_refused_at_once(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    text = await _connect_error(ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S), tmp_path)
    assert text == f"a@localhost/agent: cannot connect to 127.0.0.1:{port}: Connection refused; {REMEDY}"


async def test_a_server_that_hangs_up_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with _listen(hang_up) as port:
        text = await _connect_error(ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S), tmp_path)
    assert text.startswith(f"a@localhost/agent: cannot connect to 127.0.0.1:{port}: ")
    assert text.endswith(f"; {REMEDY}")


@asynccontextmanager
async def _listen(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()


async def test_a_port_that_never_answers_ends_with_the_timeout(tmp_path: Path) -> None:
    connected = asyncio.Event()

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()

    async with _listen(silence) as port:
        text = await _connect_error(ServerEndpoint("127.0.0.1", port, timeout_s=0.5), tmp_path, after=connected)
    assert text.endswith(f"127.0.0.1:{port}: no answer within 0.5 s; check host and port")


async def test_another_kind_of_server_is_an_error(tmp_path: Path) -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with _listen(http) as port:
        text = await _connect_error(ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S), tmp_path)
    assert f"cannot connect to 127.0.0.1:{port}" in text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("piece_size", [1000, 1], ids=["in one piece", "byte by byte"])
@pytest.mark.parametrize("first", [DTD + STREAM, STREAM + DTD], ids=["before the stream", "in the stream"])
async def test_a_stream_with_xml_entities_is_ended_at_once(first: str, piece_size: int, encoding: str, tmp_path: Path) -> None:
    """An attacker between us and the server can write into the stream before TLS."""
    data = (first + "<message from='localhost'><body>&i;</body></message>").encode(encoding)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        with suppress(ConnectionError):
            for begin in range(0, len(data), piece_size):
                writer.write(data[begin : begin + piece_size])
                await writer.drain()
                await asyncio.sleep(0)  # each piece comes in by itself

    async with _listen(serve) as port:
        text = await _connect_error(ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S), tmp_path)
    assert f"cannot connect to 127.0.0.1:{port}" in text
    assert "no answer" not in text


async def test_a_server_that_sends_invalid_xml_gets_a_stream_error_and_is_left_at_once(tmp_path: Path) -> None:
    received: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not await reader.read(1000):
            return  # on a slow machine a second connection is begun, and the slower one is dropped
        writer.write(f"{STREAM}<message></presence>".encode())
        with suppress(ConnectionError):
            received.append((await reader.read()).decode())

    async with _listen(serve) as port:
        text = await _connect_error(ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S), tmp_path)
        await eventually(lambda: bool(received))
    assert f"cannot connect to 127.0.0.1:{port}: its stream is not XML: mismatched tag" in text
    assert "<not-well-formed xmlns='urn:ietf:params:xml:ns:xmpp-streams'/>" in received[0]


_MANAGEMENT = "<sm xmlns='urn:xmpp:sm:3'/>"
_GREETING = "<message to='b@localhost' id='m1'><body>hello</body></message>"


async def _accept(peer: Peer, certificate: CertificateFiles) -> None:
    """Begin a session with stream management."""
    await _offer_login(peer, certificate)
    await peer.log_in(BIND + _MANAGEMENT)
    await peer.expect("<enable[^>]*>")
    peer.send("<enabled xmlns='urn:xmpp:sm:3' id='session' resume='true'/>")
    await peer.expect("<message[^>]*>")


async def _offer_login(peer: Peer, certificate: CertificateFiles) -> None:
    await peer.offer(STARTTLS)
    await peer.start_tls(server_context(certificate))
    await peer.offer(mechanisms("PLAIN"))


def _connect_to(port: int, certificate: CertificateFiles) -> Connection:
    endpoint = ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S, ca_file=certificate.ca_file)
    return Connection(Login("a@localhost/agent", "x"), endpoint, SessionHandler())


@pytest.mark.parametrize("condition", ["policy-violation", "system-shutdown", "invented"])
async def test_after_a_stream_error_a_new_session_begins_though_the_server_keeps_the_old_one_open(
    condition: str, tmp_path: Path
) -> None:
    """An ejabberd that is flooded closes the connection many seconds later. As long it does not answer a resumption."""
    certificate, is_sent_again = ensure_certificate(tmp_path, ["localhost"]), asyncio.Event()

    async def script(peer: Peer) -> None:
        await _accept(peer, certificate)
        if peer is server.peers[0]:
            peer.send(f"<stream:error><{condition} xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error>")
        else:
            is_sent_again.set()
        await peer.drain()

    async with run_script(script) as server:
        connection = _connect_to(server.port, certificate)
        await connection.open()
        connection.send([OutboundMessage("b@localhost", _GREETING)])
        async with asyncio.timeout(TIMEOUT_S):
            await is_sent_again.wait()
        assert [peer.received.count("id='m1'") for peer in server.peers] == [1, 1]
        assert "<resume" not in server.received
        assert (connection.state, connection.session_count, connection.resumption_count) == ("online", 2, 0)
        await connection.close()


async def test_a_resumption_that_is_not_answered_is_followed_by_a_new_session(tmp_path: Path) -> None:
    """An ejabberd with a long queue for the old session answers no resumption, not even the tenth."""
    certificate = ensure_certificate(tmp_path, ["localhost"])
    is_resuming, is_sent_again = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        number = len(server.peers)
        if number == 2:
            await _offer_login(peer, certificate)
            await peer.expect("<auth[^>]*>")
            peer.send(f"<success xmlns='{SASL}'/>")
            await peer.offer(BIND + _MANAGEMENT)
            await peer.expect("<resume[^>]*>")
            is_resuming.set()
        else:
            await _accept(peer, certificate)
            if number == 1:
                return  # cuts the connection
            is_sent_again.set()
        await peer.drain()

    async with run_script(script) as server:
        connection = _connect_to(server.port, certificate)
        await connection.open()
        with LoopClock() as clock:
            connection.send([OutboundMessage("b@localhost", _GREETING)])
            await clock.wait_for(is_resuming.is_set)
            await clock.advance(TIMEOUT_S)
            await clock.advance(1.0)  # the delay before the next attempt
            await clock.wait_for(is_sent_again.is_set)
        assert len(server.peers) == 3
        assert [peer.received.count("<resume ") for peer in server.peers] == [0, 1, 0]
        assert (connection.state, connection.session_count, connection.resumption_count) == ("online", 2, 0)
        await connection.close()


async def test_a_wrong_password_is_a_login_error(local_server: XmppServer, tmp_path: Path) -> None:
    jid, _ = await local_server.account()
    with pytest.raises(LoginError):
        await _start(jid, "wrong", endpoint_of(local_server), tmp_path)
    text = await _connect_error(endpoint_of(local_server), tmp_path, (jid, "wrong"), is_transient=False)
    remedy = f"create the account (prosodyctl adduser {jid}; ejabberdctl register {jid.partition('@')[0]} localhost PASSWORD)"
    assert text.endswith(f"refuses the login: wrong password, or no such account; correct the password, or {remedy}")


@on_both_servers
async def test_an_account_that_is_not_there_is_a_login_error(real_server: XmppServer, tmp_path: Path) -> None:
    text = await _connect_error(endpoint_of(real_server), tmp_path, ("nobody@localhost", "x"), is_transient=False)
    remedy = "create the account (prosodyctl adduser nobody@localhost; ejabberdctl register nobody localhost PASSWORD)"
    assert text.endswith(f"refuses the login: wrong password, or no such account; correct the password, or {remedy}")


@pytest.mark.servers
@pytest.mark.parametrize(
    ("server", "why"),
    [
        (prosody_server.prosody, "the server does not accept registrations"),
        (ejabberd_server.ejabberd, "the server refuses to register it (Access denied by service policy)"),
    ],
)
async def test_a_refused_registration_says_why(server: Callable[..., XmppServer], why: str, tmp_path: Path) -> None:
    require("Prosody and ejabberd", prosody_server.installed() and ejabberd_server.installed())
    with server(tmp_path / "server", allow_registration=False) as closed:
        account = ("new@localhost", "secret")
        text = await _connect_error(endpoint_of(closed), tmp_path, account, register=True, is_transient=False)
    remedy = "create the account (prosodyctl adduser new@localhost; ejabberdctl register new localhost PASSWORD)"
    assert text.endswith(f"wrong password, or no such account, and {why}; correct the password, or {remedy}")


@on_both_servers
async def test_an_untrusted_certificate_is_refused_before_the_password_leaves(real_server: XmppServer, tmp_path: Path) -> None:
    account = await real_server.account()
    for ca_file in (None, ensure_certificate(tmp_path / "another", ("localhost",)).ca_file):
        endpoint = ServerEndpoint(real_server.host, real_server.port, ca_file=ca_file, timeout_s=TIMEOUT_S)
        text = await _connect_error(endpoint, tmp_path, account, is_transient=False)
        assert "its certificate is not trusted" in text
        assert "set server.tls.ca_file (--ca-file)" in text


async def test_a_server_of_another_domain_says_so(real_server: XmppServer, tmp_path: Path) -> None:
    account = ("echo@example.org", "x")
    text = await _connect_error(endpoint_of(real_server), tmp_path, account, is_transient=False)
    assert "host-unknown" in text


async def test_a_certificate_of_another_domain_is_refused(tmp_path: Path) -> None:
    other = ensure_certificate(tmp_path / "certs", ("example.org",))
    text = await _tls_error(other.certificate, other.key, other.ca_file, tmp_path)
    assert "its certificate is not trusted (Hostname mismatch" in text
    assert text.endswith("it must name the domain of the JID")


async def test_a_self_signed_certificate_is_to_be_named_itself(tmp_path: Path) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    text = await _tls_error(tmp_path / "cert.pem", tmp_path / "key.pem", None, tmp_path)
    assert "its certificate is not trusted (self-signed certificate" in text
    assert text.endswith("set server.tls.ca_file (--ca-file) to this certificate")


async def test_a_server_that_hangs_up_during_the_handshake_is_said_to(tmp_path: Path) -> None:
    """ejabberd does so if it has no certificate for the domain."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _offer_tls(reader, writer)
        await reader.read(1000)
        writer.transport.abort()

    async with _listen(serve) as port:
        text = await _connect_error(ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S), tmp_path)
    problem = "the server closed the connection during the TLS handshake; check that the server has a certificate for localhost"
    assert text == f"a@localhost/agent: cannot connect to 127.0.0.1:{port}: {problem}"


def test_a_reason_of_openssl_that_this_python_does_not_know_has_its_text() -> None:
    error = ssl.SSLError(1, "[SSL] legacy sigalg disallowed or unsupported (_ssl.c:992)")
    assert explain(error).text == "TLS fails (legacy sigalg disallowed or unsupported)"
    assert explain(ssl.SSLEOFError(8, "EOF occurred in violation of protocol (_ssl.c:992)")).text == (
        "TLS fails (eof occurred in violation of protocol)"
    )


@pytest.mark.parametrize("error", [ConnectionResetError(), ConnectionAbortedError(), EOFError()])
def test_an_error_without_a_text_has_a_reason(error: Exception) -> None:
    assert explain(error).text in ("the server closed the connection", "EOFError")


async def test_a_renewed_certificate_in_the_ca_file_is_read_by_the_next_attempt(
    real_server: XmppServer, tmp_path: Path
) -> None:
    account, ca_file = await real_server.account(), tmp_path / "ca.pem"
    ca_file.write_bytes(ensure_certificate(tmp_path / "another", ("localhost",)).ca_file.read_bytes())
    endpoint = ServerEndpoint(real_server.host, real_server.port, ca_file=ca_file, timeout_s=TIMEOUT_S)
    connection = Connection(Login(*account), endpoint, SessionHandler())
    with pytest.raises(ConnectError, match="its certificate is not trusted"):
        await connection.open()
    ca_file.write_bytes(real_server.ca_file.read_bytes())
    await connection.open()
    await connection.close()
    ca_file.write_text("not yet written")  # a file that is being replaced
    await connection.open()
    await connection.close()


async def _offer_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(f"{STREAM}<stream:features><starttls xmlns='{TLS}'><required/></starttls></stream:features>".encode())
    await reader.read(1000)
    writer.write(f"<proceed xmlns='{TLS}'/>".encode())


async def _tls_error(certificate: Path, key: Path, ca_file: Path | None, directory: Path) -> str:
    """Return the error of a connection to a server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _offer_tls(reader, writer)
        with suppress(ssl.SSLError, ConnectionError):
            await writer.start_tls(context)

    async with _listen(serve) as port:
        endpoint = ServerEndpoint("127.0.0.1", port, ca_file=ca_file, timeout_s=TIMEOUT_S)
        return await _connect_error(endpoint, directory, is_transient=False)


async def test_a_connection_that_was_closed_can_be_opened_again(real_server: XmppServer) -> None:
    jid, password = await real_server.account()
    connection = Connection(Login(f"{jid}/agent", password), endpoint_of(real_server), SessionHandler())
    try:
        first, second = (
            OutboundMessage(jid, f"<message to='{jid}' type='headline'><body>{text}</body></message>") for text in "12"
        )
        await connection.open()
        connection.send([first])
        assert await connection.wait_until_acknowledged(TIMEOUT_S)
        await connection.close()
        await connection.open()
        assert connection.state == "online"
        connection.send([second])
        await eventually(lambda: second.is_acknowledged)  # it asks the server by itself
    finally:
        await connection.close()


async def test_an_agent_sends_presence_when_it_is_ready_and_not_before(prosody: XmppServer, tmp_path: Path) -> None:
    """Messages that came while it was away, or starting, wait for it."""
    started, release = asyncio.Event(), asyncio.Event()

    class Slow(Echo):
        async def startup(self) -> None:
            started.set()
            await release.wait()

        async def shutdown(self) -> None: ...

    agents: list[Any] = [Slow(), Echo()]
    async with (
        run_agent(lambda peers: agents.pop(), prosody, tmp_path) as echo,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        # Presence is for those who may see it: the agent lets alice.
        subscription_received = asyncio.Event()
        echo.host.client.add_event_handler("presence_subscribe", lambda presence: subscription_received.set())
        alice.xmpp.send_presence(pto=echo.jid, ptype="subscribe")
        await asyncio.wait_for(subscription_received.wait(), TIMEOUT_S)
        echo.host.client.send_presence(pto=alice.jid, ptype="subscribed")
        await _wait_for_presence(alice, echo.jid, "available")
        await echo.stop()
        await _wait_for_presence(alice, echo.jid, "unavailable")
        alice.send("while it was away", echo.jid)
        starting = asyncio.create_task(echo.start())
        await asyncio.wait_for(started.wait(), TIMEOUT_S)
        alice.send("while it starts", echo.jid)
        release.set()
        await starting
        await _wait_for_presence(alice, echo.jid, "available")
        assert [(await alice.answer())["body"] for _ in range(2)] == ["while it was away", "while it starts"]


async def _wait_for_presence(client: StockClient, jid: str, kind: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            presence = await client.presences.get()
            if presence["from"].bare == jid and presence["type"] == kind:
                return


async def test_an_agent_always_binds_the_same_resource(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        for _ in range(2):
            alice.send("hello", echo.jid)
            assert str((await alice.answer())["from"]) == f"{echo.jid}/agent"
            await echo.restart()


@on_both_servers
async def test_a_cut_connection_reports_it_and_reconnects(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        Tunnel(real_server) as tunnel,
        run_agent(Echo(), real_server, tmp_path, port=tunnel.port) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await alice.ask("one", echo.jid) == "one"
        assert echo.host.is_alive()
        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: not echo.host.is_alive())
        alice.send("two", echo.jid)
        tunnel.is_open = True
        assert (await alice.answer())["body"] == "two"
        await eventually(echo.host.is_alive)
        assert echo.host.connection.resumption_count == 1


async def test_a_connection_that_is_cut_twice_is_no_broken_one_until_it_is_lost(prosody: XmppServer, tmp_path: Path) -> None:
    """asyncio can neither write to a TLS transport that was closed twice, nor abort it (Python 3.11.2 raises)."""
    async with run_agent(Echo(), prosody, tmp_path) as agent:
        connection = agent.host.connection
        for _ in range(3):  # by the end of the stream, the loss of the connection and a stop, in any order
            connection.client.abort()
            connection.client.send_raw(" ")
        await eventually(lambda: connection.session_count == 2 or connection.resumption_count == 1)


async def test_messages_of_a_server_that_does_not_hear_the_agent_are_no_answer(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        Tunnel(real_server) as tunnel,
        run_agent(Echo(), real_server, tmp_path, port=tunnel.port) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        connection = echo.host.connection
        assert await alice.ask("one", echo.jid) == "one"
        tunnel.dropped_direction, received_at = "to the server", 0.0
        for number in range(5):  # an acknowledgement of before may come beside the first ones
            received_at = connection.client.last_received_at
            alice.send(f"{number}", echo.jid)
            await eventually(lambda before=received_at: connection.client.last_received_at > before)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
        assert (connection.answered_at or 0.0) < received_at
        tunnel.dropped_direction = ""
        connection.request_answer()
        await eventually(lambda: (connection.answered_at or 0.0) > received_at)


async def test_a_session_that_begins_when_its_connection_is_lost_already_is_none(prosody: XmppServer, tmp_path: Path) -> None:
    """Stanzas are handled in portions, so the answer to the login may be handled after the end of the connection."""
    async with Tunnel(prosody) as tunnel, run_agent(Echo(), prosody, tmp_path, port=tunnel.port) as echo:
        connection = echo.host.connection
        assert connection.answered_at is not None
        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: not (echo.host.is_alive() or connection.client.is_connected()))
        connection.client.bound = True  # as by the answer to the login
        connection.client.event("stream_negotiated")
        assert connection.answered_at is None
        assert connection.state != "online"
        tunnel.is_open = True
        await eventually(echo.host.is_alive)


@pytest.mark.parametrize("direction", ["to the server", "to the agent"])
async def test_a_silent_connection_is_closed_and_made_again(
    real_server: XmppServer, tmp_path: Path, direction: Any, caplog: pytest.LogCaptureFixture
) -> None:
    timings = ConnectionTimings(keepalive_interval_s=0.3, response_timeout_s=0.3)
    async with (
        Tunnel(real_server) as tunnel,
        run_agent(Echo(), real_server, tmp_path, port=tunnel.port, timings=timings) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await alice.ask("one", echo.jid) == "one"
        tunnel.dropped_direction = direction
        await eventually(lambda: not echo.host.is_alive())
        tunnel.dropped_direction = ""
        tunnel.cut()  # an attempt of meanwhile would last as long as an attempt may
        await eventually(echo.host.is_alive)
        assert "the server sent nothing for 0.3 s" in caplog.text
        alice.send("two", echo.jid)
        assert (await alice.answer())["body"] == "two"


@on_both_servers
async def test_two_programs_with_one_account_do_not_replace_each_other_for_ever(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await alice.ask("one", echo.jid) == "one"
        url = f"sqlite+aiosqlite:///{tmp_path}/another.db"
        another = OnlineAgent(echo.account, real_server, url, lambda peers: Echo(prefix="another "), UNLIMITED, None)
        await another.start()
        try:
            await eventually(lambda: not echo.host.is_alive())
            await eventually(lambda: "reconnecting in" in caplog.text)
            assert f"another program logged in as {echo.jid}/agent; stop one of the programs" in caplog.text
            assert float(caplog.text.rpartition("reconnecting in ")[2].partition(" s")[0]) > 20
            assert await alice.ask("two", echo.jid) == "another two"
            assert (another.host.connection.session_count, echo.host.connection.session_count) == (1, 1)
        finally:
            await another.stop()


async def test_stopping_within_the_grace_period_lets_answers_leave(local_server: XmppServer, tmp_path: Path) -> None:
    release = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown("just in time")

    async with (
        run_agent(FunctionAgent(assist), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        alice.send("quick", agent.jid)
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
        stopping = asyncio.create_task(agent.host.stop(5))
        await asyncio.sleep(0)
        assert not stopping.done()
        release.set()
        assert (await alice.answer())["body"] == "just in time"
        await stopping


async def test_a_turn_longer_than_the_grace_period_runs_again_after_the_start(prosody: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "slow" and not request.metadata.get("redelivered"):
            await asyncio.Event().wait()
        await response.markdown("at last")

    async with (
        run_agent(lambda peers: FunctionAgent(assist), prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        alice.send("slow", agent.jid)
        alice.send("behind it", agent.jid)
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
        await agent.stop(grace_s=0.1)
        await agent.start()
        assert [(await alice.answer())["body"] for _ in range(2)] == ["at last", "at last"]


@on_both_servers
async def test_a_message_whose_write_has_failed_before_it_came_again_is_not_acknowledged(
    real_server: XmppServer, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot store received messages")
    failed, stored = Commit[bool](), Commit.completed(True)
    failed.resolve(StoreError("the disk is full"))
    commits, received = [stored, failed, stored], list[str]()

    class Receiver(SessionHandler):
        def on_message(self, message: Element) -> Commit[bool] | None:
            received.append(message.findtext("{jabber:client}body") or "")
            return commits.pop(0)

        def on_session(self, is_new: bool) -> None:
            connection.client.send_presence()

    jid, password = await real_server.account()
    timings = ConnectionTimings(renewal_delay_s=0.1)
    connection = Connection(Login(f"{jid}/agent", password), endpoint_of(real_server), Receiver(), timings=timings)
    await connection.open()
    try:
        async with StockClient(*await real_server.account(), real_server) as alice:
            alice.send("one", jid)
            alice.send("two", jid)
            await eventually(lambda: received == ["one", "two", "two"])
    finally:
        await connection.close()
    assert connection.session_count == 2
