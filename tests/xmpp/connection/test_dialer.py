"""All addresses of a server are tried, at the start and at each reconnection, within one bounded time."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from spade_coreason.exceptions import ConnectError
from spade_coreason.xmpp.connection.connection import Connection
from spade_coreason.xmpp.connection.endpoint import ServerEndpoint
from spade_coreason.xmpp.connection.errors import explain
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.connection.resolver import (
    MAX_TARGETS,
    Address,
    ServiceRecord,
    SystemResolver,
    Target,
    find_targets,
    order_services,
    parse_target,
    to_ascii,
)
from spade_coreason.xmpp.connection.session_handler import SessionHandler
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.certificates import sign_by_itself
from tests.support.clock import LoopClock
from tests.support.hosting import Tunnel
from tests.support.servers import ejabberd as ejabberd_server, prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.servers.scripted import HEADER, STARTTLS, Peer, mechanisms, run_script, server_context
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.connection.offers import over_tls, redirect_to

KINDS = pytest.mark.parametrize("kind", ["prosody", pytest.param("ejabberd", marks=pytest.mark.release)])


class TableResolver:
    """A DNS with these records. Names that it does not have do not exist; `None` is a name server that never answers."""

    def __init__(
        self, services: list[ServiceRecord] | None = None, hosts: Mapping[str, list[str] | None] | None = None
    ) -> None:
        self.services = services
        self.hosts = {"localhost": ["127.0.0.1"], **(hosts or {})}
        self.asked: list[str] = []

    async def find_services(self, domain: str) -> list[ServiceRecord]:
        """Return the records of every domain."""
        self.asked.append(domain)
        if self.services is None:
            await asyncio.Event().wait()
        return list(self.services or ())

    async def find_addresses(self, target: Target) -> list[Address]:
        """Return the addresses in the order of the table. An IP address is its own."""
        found = self.hosts.get(target.host, [target.host] if re.fullmatch(r"[\d.]+|.*:.*", target.host) else [])
        if found is None:
            await asyncio.Event().wait()
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            Address(socket.AF_INET6, (ip, target.port, 0, 0)) if ":" in ip else Address(socket.AF_INET, (ip, target.port))
            for ip in found
        ]


def record(target: Target, priority: int = 10, weight: int = 0) -> ServiceRecord:
    return ServiceRecord(priority, weight, target)


async def connect(account: tuple[str, str], endpoint: ServerEndpoint) -> Connection:
    connection = Connection(Login(f"{account[0]}/agent", account[1]), endpoint, SessionHandler())
    try:
        await connection.open()
    except BaseException:
        await connection.close()
        raise
    return connection


@pytest.fixture
def closed_port() -> int:
    return find_free_ports(1)[0]


async def test_the_next_address_of_a_host_is_tried_after_one_that_refuses(real_server: XmppServer) -> None:
    """`localhost` is often [::1] and 127.0.0.1, and servers listen on one of them."""
    resolver = TableResolver(hosts={"xmpp.example": ["::1", "127.0.0.2", "127.0.0.1"]})
    endpoint = ServerEndpoint("xmpp.example", real_server.port, ca_file=real_server.ca_file, resolver=resolver)
    connection = await connect(await real_server.account(), endpoint)
    assert connection.security is not None
    assert connection.security.address == f"xmpp.example:{real_server.port} (127.0.0.1)"
    await connection.close()


@pytest.mark.servers
@pytest.mark.parametrize("is_direct_tls", [False, True], ids=["STARTTLS", "direct TLS"])
@KINDS
async def test_srv_records_lead_to_the_server_by_starttls_and_by_direct_tls(
    kind: str, is_direct_tls: bool, closed_port: int, tmp_path: Path
) -> None:
    require("Prosody and ejabberd", prosody_server.installed() and ejabberd_server.installed())
    domain = "chat.example"
    start: Callable[..., XmppServer] = prosody_server.prosody if kind == "prosody" else ejabberd_server.ejabberd
    with start(tmp_path, other_domain=domain) as server:
        port = server.direct_tls_port if is_direct_tls else server.port
        assert port is not None
        resolver = TableResolver(
            [
                record(Target("gone.example"), 1),
                record(Target("one.example", closed_port, is_direct_tls), 2),
                record(Target("two.example", port, is_direct_tls), 3),
            ],
            {"one.example": ["127.0.0.1"], "two.example": ["127.0.0.1"]},
        )
        endpoint = ServerEndpoint(ca_file=server.ca_file, timeout_s=TIMEOUT_S, resolver=resolver)
        connection = await connect(await server.account(domain=domain), endpoint)
        security = connection.security
        await connection.close()
    assert resolver.asked == [domain]
    assert security is not None
    assert security.address == f"two.example:{port} (127.0.0.1)"
    assert (security.is_verified, security.certificate_name) == (True, domain)


async def test_the_error_lists_each_address_and_why_it_failed(closed_port: int) -> None:
    resolver = TableResolver(
        [record(Target("gone.example"), 1), record(Target("two.example", closed_port), 2)],
        {"two.example": ["::1", "127.0.0.1"]},
    )
    with pytest.raises(ConnectError) as failed:
        await connect(("a@chat.example", "x"), ServerEndpoint(resolver=resolver))
    two = f"two.example:{closed_port}"
    assert str(failed.value) == (
        "a@chat.example/agent: cannot connect to chat.example: gone.example:5222: the host name has no address, "
        f"{two} (::1): Connection refused, {two} (127.0.0.1): Connection refused; "
        "correct server.host (--host), or check the DNS; check that the server is running, and check host and port"
    )
    assert failed.value.is_transient


async def test_a_long_list_is_cut(closed_port: int) -> None:
    hosts = [f"h{number}.example" for number in range(30)]
    resolver = TableResolver([record(Target(host, closed_port), number) for number, host in enumerate(hosts)])
    with pytest.raises(ConnectError, match=r"h7\.example.*, and 8 more addresses; ") as failed:
        await connect(("a@chat.example", "x"), ServerEndpoint(resolver=resolver))
    assert len(str(failed.value)) < 1000


async def test_silent_addresses_take_two_seconds_each_while_others_are_left(real_server: XmppServer) -> None:
    """One accepts and says nothing; the backlog of the other is full, so it does not even accept."""
    account = await real_server.account()
    with ExitStack() as stack:
        mute, full = stack.enter_context(socket.create_server(("127.0.0.1", 0))), stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        ports = [mute.getsockname()[1], full.getsockname()[1], real_server.port]
        resolver = TableResolver([record(Target("localhost", port), number) for number, port in enumerate(ports)])
        endpoint = ServerEndpoint(ca_file=real_server.ca_file, resolver=resolver)
        connection = Connection(Login("a@chat.example/agent", account[1]), endpoint, SessionHandler())
        with LoopClock() as clock:
            opening = asyncio.create_task(connection.open())
            mute.setblocking(False)
            accepted = await asyncio.get_running_loop().sock_accept(mute)
            stack.enter_context(accepted[0])
            await clock.advance(1.9)
            assert not opening.done()
            await clock.advance(0.2)  # the next one
            await clock.advance(1.9)
            assert not opening.done()
            await clock.advance(0.2)  # the server, which does not serve chat.example
            await clock.wait_for(opening.done)
        with pytest.raises(ConnectError) as failed:
            await opening
        await connection.close()
    problems = [f"localhost:{port} (127.0.0.1): no answer within 2 s" for port in ports[:2]]
    assert ", ".join(problems) in str(failed.value)
    assert "host-unknown" in str(failed.value)


async def test_a_name_server_that_never_answers_takes_two_seconds(closed_port: int) -> None:
    resolver = TableResolver(None, {"chat.example": ["127.0.0.1"]})
    endpoint = ServerEndpoint(resolver=resolver)
    connection = Connection(Login("a@chat.example/agent", "x"), endpoint, SessionHandler())
    with LoopClock() as clock:
        opening = asyncio.create_task(connection.open())
        await clock.advance(1.9)
        assert not opening.done()
        await clock.advance(0.2)
        await clock.wait_for(opening.done)
    with pytest.raises(ConnectError, match=r"cannot connect to chat\.example:5222 \(127\.0\.0\.1\)"):
        await opening
    await connection.close()


async def test_the_whole_attempt_ends_in_time(tmp_path: Path) -> None:
    resolver = TableResolver([record(Target("one.example"), 1)], {"one.example": None})
    endpoint = ServerEndpoint(resolver=resolver, timeout_s=3)
    connection = Connection(Login("a@chat.example/agent", "x"), endpoint, SessionHandler())
    with LoopClock() as clock:
        opening = asyncio.create_task(connection.open())
        await clock.advance(2.9)
        assert not opening.done()
        await clock.advance(0.2)
        await clock.wait_for(opening.done)
    with pytest.raises(ConnectError, match=r"cannot connect to one\.example:5222: no answer within 3 s"):
        await opening
    await connection.close()


async def test_a_reconnection_tries_all_addresses_again(real_server: XmppServer) -> None:
    resolver = TableResolver(hosts={"xmpp.example": ["127.0.0.1"]})
    async with Tunnel(real_server) as tunnel:
        endpoint = ServerEndpoint(
            "xmpp.example", tunnel.port, ca_file=real_server.ca_file, timeout_s=TIMEOUT_S, resolver=resolver
        )
        connection = await connect(await real_server.account(), endpoint)
        resolver.hosts["xmpp.example"] = ["::1", "127.0.0.1"]  # a new address, without a server behind it
        tunnel.cut()
        await eventually(lambda: connection.session_count + connection.resumption_count == 2)
        await connection.close()


async def test_after_a_redirect_no_other_address_of_that_host_is_tried(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path, ("chat.example",))

    async def redirect(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(server_context(certificate))
        await peer.expect("<stream:stream[^>]*>")
        peer.send(HEADER + redirect_to(f"127.0.0.1:{elsewhere.port}"))
        await peer.drain()

    async def serve(peer: Peer) -> None:
        await over_tls(mechanisms("PLAIN"))(peer, server_context(certificate))

    [port] = find_free_ports(1)  # no connection of another test takes it at the other address
    async with (
        run_script(serve) as elsewhere,
        run_script(redirect, "127.0.0.1", port) as first,
        run_script(redirect, "127.0.0.2", port) as second,
    ):
        resolver = TableResolver([record(Target("one.example", first.port))], {"one.example": ["127.0.0.1", "127.0.0.2"]})
        connection = await connect(("a@chat.example", "x"), ServerEndpoint(ca_file=certificate.ca_file, resolver=resolver))
        await connection.close()
    assert (len(first.peers), len(second.peers), len(elsewhere.peers)) == (1, 0, 1)


async def test_a_domain_that_declares_to_have_no_server_says_so() -> None:
    with pytest.raises(ConnectError, match="its DNS says that it has no server for clients") as failed:
        await connect(("a@chat.example", "x"), ServerEndpoint(resolver=TableResolver([record(Target("."))])))
    assert not failed.value.is_transient


@pytest.mark.parametrize(
    ("domain", "host", "port", "targets"),
    [
        ("chat.example", None, None, [Target("chat.example")]),
        ("chat.example", "xmpp.example", None, [Target("xmpp.example")]),
        ("chat.example", None, 5223, [Target("chat.example", 5223)]),
        ("[::1]", None, None, [Target("::1")]),
        ("chat.example", "[::1]", None, [Target("::1")]),
        ("127.0.0.1", None, None, [Target("127.0.0.1")]),
        ("localhost", None, None, [Target("localhost")]),
    ],
)
async def test_the_targets_of_a_domain_without_records(
    domain: str, host: str | None, port: int | None, targets: list[Target]
) -> None:
    assert await find_targets(domain, host, port, TableResolver([])) == targets


def test_priorities_come_first_and_weights_decide_by_chance() -> None:
    names = {"a": (1, 0), "b": (1, 10), "c": (1, 30), "d": (0, 5), "e": (2, 0)}
    records = [record(Target(name), priority, weight) for name, (priority, weight) in names.items()]

    def order(chance: Callable[[int, int], int]) -> str:
        return "".join(target.host for target in order_services(records, chance))

    assert order(lambda low, high: high) == "dcbae"
    assert order(lambda low, high: low) == "dabce"
    assert order(lambda low, high: min(high, 10)) == "dbcae"


def test_of_a_thousand_records_only_so_many_are_ordered_as_are_tried() -> None:
    chances = []

    def pick(low: int, high: int) -> int:
        chances.append(high)
        return low

    records = [record(Target(f"host-{number}"), 1, 1) for number in range(1400)]
    assert len(order_services(records, pick)) == len(chances) == MAX_TARGETS


def test_both_kinds_of_records_share_the_priorities() -> None:
    tls, starttls = Target("a", 5223, is_direct_tls=True), Target("a", 5222)
    assert order_services([record(starttls, 5), record(tls, 1)]) == [tls, starttls]
    assert order_services([record(starttls, 1), record(tls, 5)]) == [starttls, tls]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("chat.example", Target("chat.example")),
        ("chat.example:5269", Target("chat.example", 5269)),
        ("[2001:db8::1]:5222", Target("2001:db8::1")),
        ("192.0.2.1", Target("192.0.2.1")),
        ("chat.example:0", None),
        ("chat.example:99999", None),
        ("chat.example:5222:1", None),
        ("a b", None),
        ("\u202echat.example", None),
        ("", None),
        ("x" * 5000, None),
    ],
)
def test_the_host_of_a_redirect(text: str, target: Target | None) -> None:
    assert parse_target(text) == target


def test_the_dns_and_certificates_have_ascii_names() -> None:
    assert to_ascii("münchen.example") == "xn--mnchen-3ya.example"
    assert to_ascii("straße.example") == "xn--strae-oqa.example"  # with IDNA 2003 it would be strasse.example, of somebody else
    assert to_ascii("chat.example") == "chat.example"
    assert to_ascii("[::1]") == "[::1]"


@pytest.mark.servers
async def test_a_domain_in_its_ascii_form_is_the_domain(tmp_path: Path) -> None:
    """Servers know it as what it stands for (RFC 7622, 3.2), and answered `host-unknown`."""
    require("Prosody", prosody_server.installed())
    from spade_coreason.domain.jid import parse_jid

    with prosody_server.prosody(tmp_path, domain="münchen.example") as server:
        jid, password = await server.account()
        ascii_jid = parse_jid(jid.replace("münchen", "XN--MNCHEN-3YA"))
        assert ascii_jid == jid
        endpoint = ServerEndpoint(server.host, server.port, ca_file=server.ca_file, timeout_s=TIMEOUT_S)
        connection = await connect((ascii_jid, password), endpoint)
        assert connection.security is not None
        assert connection.security.certificate_name == "xn--mnchen-3ya.example"
        await connection.close()


@pytest.mark.servers
@KINDS
@pytest.mark.parametrize(
    ("name", "until_day", "is_known", "problem"),
    [
        ("elsewhere.example", 1, True, "Hostname mismatch, certificate is not valid for 'chat.example'"),
        ("chat.example", -1, True, "certificate has expired"),
        ("chat.example", 1, False, "self-signed certificate"),
    ],
    ids=["another name", "expired", "unknown authority"],
)
async def test_a_real_server_with_a_bad_certificate_gets_no_login(
    kind: str, name: str, until_day: float, is_known: bool, problem: str, tmp_path: Path
) -> None:
    require("Prosody and ejabberd", prosody_server.installed() and ejabberd_server.installed())
    start: Callable[..., XmppServer] = prosody_server.prosody if kind == "prosody" else ejabberd_server.ejabberd
    certificate = sign_by_itself(tmp_path / "bad", name, from_day=-3, until_day=until_day)
    with start(tmp_path / "server", other_domain="chat.example", certificate=certificate) as server:
        for port, is_direct in ((server.port, False), (server.direct_tls_port, True)):
            assert port is not None
            resolver = TableResolver([record(Target("127.0.0.1", port, is_direct))])
            ca_file = certificate.ca_file if is_known else None
            endpoint = ServerEndpoint(None, None, ca_file=ca_file, timeout_s=TIMEOUT_S, resolver=resolver)
            with pytest.raises(ConnectError, match=problem):
                await connect(("a@chat.example", "x"), endpoint)


def test_an_alert_says_what_the_other_side_has_said(tmp_path: Path) -> None:
    context = server_context(sign_by_itself(tmp_path, "localhost"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    client_context = ssl.create_default_context()
    client_context.maximum_version = ssl.TLSVersion.TLSv1_2
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLError):
        server.do_handshake()
    with pytest.raises(ssl.SSLError) as failed:
        client.do_handshake()
    problem = explain(failed.value)
    assert problem.text == "the server refuses TLS (alert: protocol version)"
    assert "certificate and TLS settings" in problem.remedy


@pytest.mark.parametrize("host", ["a..example", "x" * 64 + ".example"])
async def test_a_host_with_an_impossible_name_is_one_that_has_no_address(host: str, closed_port: int) -> None:
    """The UnicodeError of Python ended `open`, and the task that connects again: the agent stayed offline."""

    class Resolver(SystemResolver):
        async def find_services(self, domain: str) -> list[ServiceRecord]:
            return [record(Target(host), 1), record(Target("127.0.0.1", closed_port), 2)]

    with pytest.raises(ConnectError, match=rf"{re.escape(host)}:5222: the host name has no address.*127\.0\.0\.1"):
        await connect(("a@chat.example", "x"), ServerEndpoint(resolver=Resolver()))


@pytest.mark.parametrize("phase", ["the DNS", "the stream"])
async def test_a_connection_that_is_closed_during_an_attempt_stays_closed(phase: str) -> None:
    """The next address or attempt gave a session, which nobody ended."""
    found, asked = asyncio.Event(), asyncio.Event()

    class Resolver(TableResolver):
        async def find_addresses(self, target: Target) -> list[Address]:
            asked.set()
            if phase == "the DNS":
                await found.wait()
            return await super().find_addresses(target)

    async def script(peer: Peer) -> None:
        await peer.expect("<stream:stream")
        came.set()
        await peer.drain()

    came = asyncio.Event()
    async with run_script(script) as server:
        endpoint = ServerEndpoint("127.0.0.1", server.port, timeout_s=TIMEOUT_S, attempts=2, resolver=Resolver())
        connection = Connection(Login("a@chat.example/agent", "x"), endpoint, SessionHandler())
        opening = asyncio.create_task(connection.open())
        await (asked if phase == "the DNS" else came).wait()
        await connection.close()
        found.set()
        with pytest.raises(ConnectError, match="the connection was closed by this program"):
            await opening
        assert connection.state == "offline"
        assert "<stream" not in server.received or phase == "the stream"
        assert len(server.peers) <= 1
        await connection.close()
