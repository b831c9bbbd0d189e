"""Not a word before TLS, to no other server: each cell of the table of the page on security, and what it does not show."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import hmac
import re
import ssl
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spade_coreason.exceptions import ConnectError, LoginError
from spade_coreason.xmpp.connection.connection import Connection
from spade_coreason.xmpp.connection.endpoint import ServerEndpoint
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.connection.security import choose_mechanisms
from spade_coreason.xmpp.connection.session_handler import SessionHandler
from spade_coreason.xmpp.servers.certificate import CertificateFiles, ensure_certificate
from tests.support.certificates import sign_by_itself
from tests.support.hosting import endpoint_of
from tests.support.servers import ejabberd as ejabberd_server
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.requirements import require
from tests.support.servers.scripted import (
    BIND,
    HEADER,
    REGISTER,
    SASL,
    STARTTLS,
    TLS,
    Peer,
    contains_password,
    mechanisms,
    run_script,
    server_context,
)
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.connection.offers import OFFERS, ONLINE, Offer, Serve, build_table, early, over_tls, redirect_to

PASSWORD = "a-password-of-its-own"
ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "spade_coreason"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CertificateFiles]:
    directory = tmp_path_factory.mktemp("certificates")
    return {
        "good": ensure_certificate(directory / "good", ("localhost",)),
        "other": sign_by_itself(directory / "other", "elsewhere.example"),
        "expired": sign_by_itself(directory / "expired", "localhost", from_day=-3, until_day=-1),
        "unknown": sign_by_itself(directory / "unknown", "localhost"),
    }


def connect(port: int, *, register: bool = False, **options: object) -> Connection:
    endpoint = ServerEndpoint("127.0.0.1", port, timeout_s=TIMEOUT_S, **options)  # type: ignore[arg-type]
    return Connection(Login("a@localhost/agent", PASSWORD, register), endpoint, SessionHandler())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")  # one row is about it
@pytest.mark.parametrize("column", range(3), ids=["default", "not-verified", "not-required"])
@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.name)
async def test_a_cell_of_the_table(offer: Offer, column: int, certificates: dict[str, CertificateFiles]) -> None:
    certificate = certificates[offer.certificate]
    ca_file = certificates["good" if offer.certificate == "unknown" else offer.certificate].ca_file
    options = ({"ca_file": ca_file}, {"verify": False}, {"ca_file": ca_file, "requires_tls": False})[column]

    async def script(peer: Peer) -> None:
        await offer.serve(peer, server_context(certificate))

    async with run_script(script) as server:
        connection = connect(server.port, register=True, **options)
        try:
            await connection.open()
        except ConnectError as error:
            outcome = str(error)
        else:
            outcome = ONLINE
        finally:
            await connection.close()
    expected = offer.cells[column]
    assert expected in outcome
    assert "\n" not in outcome
    if column < 2:  # without TLS, there is nothing but the header and the wish for TLS
        assert re.fullmatch(r"(?:<stream:stream[^>]*>)?(?:<starttls[^>]*/>)?", server.clear), server.clear
    if expected != ONLINE:
        assert not contains_password(server.received, PASSWORD)
        assert "<iq" not in server.received
        assert "<message" not in server.received


def test_the_page_on_security_has_the_table() -> None:
    assert build_table() in (ROOT / "docs/explanation/security-model.md").read_text()


def test_every_connection_goes_this_way() -> None:
    """The agents, `ask`, `chat`, `check`, `invite` and AgentClient: nothing else opens a stream to a server."""
    users: dict[str, set[str]] = {"XMPPClient": set(), "ClientXMPP": set(), "open_bare_stream": set(), "BareStream": set()}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in users:
                users[node.func.id].add(file.relative_to(PACKAGE).as_posix())
    assert users == {
        "XMPPClient": {"xmpp/connection/connection.py"},
        "ClientXMPP": set(),
        "open_bare_stream": {"xmpp/servers/embedded.py", "xmpp/servers/process.py"},  # our own servers, verified
        "BareStream": {"xmpp/servers/bare_stream.py"},
    }


# Redirects


async def test_a_redirect_without_tls_changes_neither_the_server_nor_the_name_of_the_next_attempt(
    certificates: dict[str, CertificateFiles],
) -> None:
    """slixmpp checked the certificate of the next attempt against the name in the redirect."""
    good, other = certificates["good"], certificates["other"]

    async def script(peer: Peer) -> None:
        if len(server.peers) == 1:
            await peer.expect("<stream:stream[^>]*>")
            peer.send("<stream:stream xmlns:stream='http://etherx.jabber.org/streams'>" + redirect_to("elsewhere.example"))
            await peer.drain()
        else:
            await over_tls(mechanisms("PLAIN"))(peer, server_context(other))

    async with run_script(script) as server:
        connection = connect(server.port, ca_file=other.ca_file)
        with pytest.raises(
            ConnectError, match=r"the server redirects to elsewhere\.example:5222 without verified TLS"
        ) as failed:
            await connection.open()
        assert "set server.host and server.port" in str(failed.value)
        with pytest.raises(ConnectError, match="Hostname mismatch, certificate is not valid for 'localhost'"):
            await connection.open()
        await connection.close()
        assert good.ca_file != other.ca_file
    assert not contains_password(server.received, PASSWORD)


async def test_a_redirect_of_a_verified_server_is_followed_under_the_same_name(
    certificates: dict[str, CertificateFiles],
) -> None:
    context = server_context(certificates["good"])

    async def serve(peer: Peer) -> None:
        await over_tls(mechanisms("PLAIN"))(peer, context)

    async def redirect(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.expect("<stream:stream[^>]*>")
        peer.send("<stream:stream xmlns:stream='http://etherx.jabber.org/streams'>" + redirect_to(f"127.0.0.1:{second.port}"))
        await peer.drain()

    async with run_script(serve) as second, run_script(redirect) as first:
        connection = connect(first.port, ca_file=certificates["good"].ca_file)
        await connection.open()
        assert connection.security is not None
        assert connection.security.address == f"127.0.0.1:{second.port}"
        await connection.close()
    assert second.received.count("to='localhost'") == 3  # without TLS, over TLS, and after the login
    assert not contains_password(first.received, PASSWORD)


async def test_a_second_redirect_and_a_redirect_to_another_name_end_the_attempt(
    certificates: dict[str, CertificateFiles],
) -> None:
    contexts = {name: server_context(certificates[name]) for name in ("good", "other")}

    async def other(peer: Peer) -> None:
        await over_tls(mechanisms("PLAIN"))(peer, contexts["other"])

    async def redirect(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(contexts["good"])
        await peer.expect("<stream:stream[^>]*>")
        port = target if len(first.peers) == 1 else first.port
        peer.send("<stream:stream xmlns:stream='http://etherx.jabber.org/streams'>" + redirect_to(f"127.0.0.1:{port}"))
        await peer.drain()

    async with run_script(other) as second, run_script(redirect) as first:
        target = second.port
        connection = connect(first.port, ca_file=certificates["good"].ca_file)
        place = f"redirected by 127.0.0.1:{first.port} to 127.0.0.1:{second.port}; its certificate is not trusted"
        with pytest.raises(ConnectError, match=place):
            await connection.open()
        target = first.port
        first.peers.clear()
        with pytest.raises(ConnectError, match="redirects once more"):
            await connection.open()
        await connection.close()
        assert len(first.peers) == 2


async def test_a_redirect_during_the_session_leads_the_next_attempt(certificates: dict[str, CertificateFiles]) -> None:
    context, sent = server_context(certificates["good"]), asyncio.Event()

    async def serve(peer: Peer) -> None:
        await over_tls(mechanisms("PLAIN"))(peer, context)

    async def serve_and_redirect(peer: Peer) -> None:
        serving = asyncio.create_task(over_tls(mechanisms("PLAIN"))(peer, context))
        await sent.wait()
        peer.send(redirect_to(f"127.0.0.1:{second.port}"))
        await serving

    async with run_script(serve) as second, run_script(serve_and_redirect) as first:
        connection = connect(first.port, ca_file=certificates["good"].ca_file)
        await connection.open()
        sent.set()
        await eventually(lambda: connection.session_count == 2)
        assert connection.security is not None
        assert connection.security.address == f"127.0.0.1:{second.port}"
        await connection.close()


# The login


@pytest.mark.parametrize(
    ("offered", "is_verified", "is_loopback", "can_bind", "allowed"),
    [
        ({"SCRAM-SHA-1", "PLAIN"}, True, False, False, {"SCRAM-SHA-1", "PLAIN"}),
        ({"SCRAM-SHA-1", "PLAIN"}, False, False, False, {"SCRAM-SHA-1"}),
        ({"SCRAM-SHA-1", "PLAIN"}, False, True, False, {"SCRAM-SHA-1", "PLAIN"}),
        ({"SCRAM-SHA-1-PLUS", "SCRAM-SHA-1"}, True, False, False, {"SCRAM-SHA-1"}),
        ({"SCRAM-SHA-1-PLUS", "SCRAM-SHA-1"}, True, False, True, {"SCRAM-SHA-1-PLUS", "SCRAM-SHA-1"}),
        ({"ANONYMOUS", "EXTERNAL", "X-OAUTH2", "PLAIN"}, True, True, True, {"PLAIN"}),
        ({"PLAIN"}, False, False, False, "PLAIN only"),
        ({"ANONYMOUS"}, True, True, True, "no usable login (ANONYMOUS)"),
        (set(), True, True, True, "no usable login (nothing)"),
    ],
)
def test_the_mechanisms_that_may_be_used(
    offered: set[str], is_verified: bool, is_loopback: bool, can_bind: bool, allowed: set[str] | str
) -> None:
    found = choose_mechanisms(offered, is_verified=is_verified, is_loopback=is_loopback, can_bind=can_bind)
    assert allowed in str(found) if isinstance(allowed, str) else frozenset(allowed) == found


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_a_login_is_bound_to_its_channel_only_where_that_is_possible(
    version: ssl.TLSVersion, certificates: dict[str, CertificateFiles]
) -> None:
    """With TLS 1.3 each login began with one that failed, and mod_fail2ban of ejabberd counts those."""
    context = server_context(certificates["good"])
    context.maximum_version = version

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(mechanisms("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256", "PLAIN"))
        chosen.append((await peer.expect("<auth[^>]*mechanism=[\"']([^\"']*)"))[1])

    chosen: list[str] = []
    async with run_script(script) as server:
        connection = connect(server.port, ca_file=certificates["good"].ca_file)
        with pytest.raises(ConnectError):
            await connection.open()
        await connection.close()
    assert chosen == ["SCRAM-SHA-256-PLUS" if version == ssl.TLSVersion.TLSv1_2 else "SCRAM-SHA-256"]


async def test_a_refused_password_is_tried_once(certificates: dict[str, CertificateFiles]) -> None:
    """It was tried with every mechanism, PLAIN at last, which a server counts as so many attacks."""
    context = server_context(certificates["good"])

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(mechanisms("SCRAM-SHA-256", "SCRAM-SHA-1", "PLAIN"))
        await peer.expect("<auth[^>]*>")
        peer.send("<failure xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><not-authorized/></failure>")
        await peer.drain()

    async with run_script(script) as server:
        connection = connect(server.port, ca_file=certificates["good"].ca_file)
        with pytest.raises(LoginError, match="wrong password, or no such account"):
            await connection.open()
        await connection.close()
    assert server.received.count("<auth") == 1


@pytest.mark.parametrize(
    ("condition", "text", "is_refused"),
    [
        ("account-disabled", "the account is disabled; enable it on the server", True),
        ("credentials-expired", "the password has expired", True),
        ("invalid-authzid", r"the server refuses it \(invalid-authzid\)", True),
        ("temporary-auth-failure", "the server cannot check passwords at the moment", False),
    ],
)
async def test_a_refused_login_says_why(
    condition: str, text: str, is_refused: bool, certificates: dict[str, CertificateFiles]
) -> None:
    context = server_context(certificates["good"])

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(mechanisms("PLAIN"))
        await peer.expect("<auth[^>]*>")
        peer.send(f"<failure xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><{condition}/></failure>")
        await peer.drain()

    async with run_script(script) as server:
        connection = connect(server.port, ca_file=certificates["good"].ca_file)
        with pytest.raises(ConnectError, match=text) as failed:
            await connection.open()
        await connection.close()
    assert isinstance(failed.value, LoginError) is is_refused
    assert failed.value.is_transient is not is_refused


@on_both_servers
async def test_a_real_server_that_is_not_verified_gets_the_password_by_scram_and_never_by_plain(
    real_server: XmppServer,
) -> None:
    jid, password = await real_server.account()
    endpoint = ServerEndpoint(real_server.host, real_server.port, verify=False, timeout_s=TIMEOUT_S)
    connection = Connection(Login(f"{jid}/agent", password), endpoint, SessionHandler())
    await connection.open()
    security = connection.security
    await connection.close()
    assert security is not None
    assert security.mechanism.startswith("SCRAM-SHA-")
    assert security.problem == f"the certificate of {security.address} is not verified (server.tls.verify is off)"


async def test_a_session_says_how_it_is_protected(local_server: XmppServer) -> None:
    jid, password = await local_server.account()
    connection = Connection(Login(f"{jid}/agent", password), endpoint_of(local_server), SessionHandler())
    await connection.open()
    security = connection.security
    await connection.close()
    assert security is not None
    assert security.problem is None
    assert security.address == f"127.0.0.1:{local_server.port}"
    pattern = rf"127\.0\.0\.1:{local_server.port}, TLS 1\.[23], certificate of localhost until 20\d\d-\d\d-\d\d, (SCRAM|PLAIN)"
    assert re.match(pattern, str(security))


@pytest.mark.servers
async def test_a_login_leaves_no_refused_one_in_the_log_of_ejabberd(tmp_path: Path) -> None:
    """mod_fail2ban counts what this log has."""
    require("ejabberd", ejabberd_server.installed())
    with ejabberd_server.ejabberd(tmp_path) as server:
        jid, password = await server.account()

        def count_refused() -> int:
            return len(re.findall("Failed c2s .* authentication", (server.directory / "ejabberd.log").read_text()))

        for secret in (password, "wrong"):
            connection = Connection(Login(f"{jid}/agent", secret), endpoint_of(server), SessionHandler())
            with suppress(LoginError):
                await connection.open()
            await connection.close()
        await eventually(lambda: count_refused() == 1)


def scram_script(
    certificate: CertificateFiles, answer: Callable[[str], str], offered: str = mechanisms("SCRAM-SHA-256")
) -> Callable[[Peer], Awaitable[None]]:
    """Return a script that answers the first message of SCRAM. `answer` gets the nonce of the client."""
    context = server_context(certificate)

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(offered)
        first = b64decode((await peer.expect("<auth[^>]*>([^<]*)<"))[1]).decode()
        peer.send(answer(first.partition("r=")[2]))
        await peer.drain()

    return script


def sasl(name: str, content: str) -> str:
    return f"<{name} xmlns='{SASL}'>{b64encode(content.encode()).decode()}</{name}>"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda nonce: sasl("success", f"r={nonce}x,s=c2FsdA==,i=4096"), "without a proof that it knows the password"),
        (lambda nonce: sasl("success", f"r={nonce}x,s=c2FsdA==,i=999999999"), "without a proof that it knows the password"),
        (lambda nonce: sasl("challenge", f"v=x,r={nonce}x,s=c2FsdA==,i=999999999"), "unusual number of SCRAM iterations"),
        (lambda nonce: sasl("challenge", "v=eHh4"), "malformed challenge"),
        (lambda nonce: f"<challenge xmlns='{SASL}'>\u00e4</challenge>", "malformed challenge"),
    ],
    ids=["a challenge as success", "a slow one", "a slow challenge with a proof", "a proof too early", "not ASCII"],
)
async def test_scram_ends_with_a_proof_and_with_nothing_else(
    answer: Callable[[str], str], problem: str, certificates: dict[str, CertificateFiles]
) -> None:
    """slixmpp took a challenge within `<success/>` for a login, and computed any number of iterations for it."""
    async with run_script(scram_script(certificates["good"], answer)) as server:
        connection = connect(server.port, verify=False)
        with pytest.raises(ConnectError, match=problem):
            await connection.open()
        await connection.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (f"<success xmlns='{SASL}'/>", "without a proof"),
        (f"<failure xmlns='{SASL}'><aborted/></failure>", "a login that has not begun"),
    ],
    ids=["success", "failure"],
)
async def test_a_login_of_an_earlier_connection_does_not_count(
    answer: str, problem: str, certificates: dict[str, CertificateFiles]
) -> None:
    context = server_context(certificates["good"])

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.expect("<stream:stream[^>]*>")
        if len(server.peers) == 1:
            peer.send(f"{HEADER}<stream:features>{mechanisms('PLAIN')}</stream:features>")
            await peer.expect("<auth[^>]*>")
        else:
            peer.send(f"{HEADER}{answer}")
            await peer.drain()

    async with run_script(script) as server:
        connection = connect(server.port, verify=False)
        with pytest.raises(ConnectError):
            await connection.open()
        with pytest.raises(ConnectError, match=problem):
            await connection.open()
        await connection.close()


async def test_a_failed_attempt_leaves_no_task_that_goes_on_with_the_next_connection(
    certificates: dict[str, CertificateFiles],
) -> None:
    """slixmpp waited 30 s for an answer, then went on to the next feature, on whatever connection there was."""
    context = server_context(certificates["good"])

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(REGISTER + mechanisms("PLAIN"))
        await peer.expect("<iq[^>]*>")

    async with run_script(script) as server:
        connection = connect(server.port, ca_file=certificates["good"].ca_file, register=True)
        with pytest.raises(ConnectError):
            await connection.open()
        await asyncio.sleep(0)  # a cancelled task ends in the next round
        assert not find_feature_tasks()
        await connection.close()


def find_feature_tasks() -> list[str]:
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return [name for name in names if "pointer_wrapper" in name]


def _hostile_error(name: str) -> str:
    space = "urn:ietf:params:xml:ns:xmpp-streams"
    return f"<stream:error><{name} xmlns='{space}'/><text xmlns='{space}'>{HOSTILE_TEXT}</text></stream:error>"


HOSTILE_TEXT = "one\ntwo&#x202e;three&#x2028;" + "x" * 100_000


@pytest.mark.parametrize(
    "serve",
    [early(_hostile_error("internal-server-error")), early(_hostile_error("x" * 100_000)), over_tls(mechanisms(HOSTILE_TEXT))],
    ids=["text", "condition", "mechanism"],
)
async def test_what_a_server_says_is_one_short_line(serve: Serve, certificates: dict[str, CertificateFiles]) -> None:
    async def script(peer: Peer) -> None:
        await serve(peer, server_context(certificates["good"]))

    async with run_script(script) as server:
        connection = connect(server.port, verify=False)
        with pytest.raises(ConnectError) as failed:
            await connection.open()
        await connection.close()
    assert str(failed.value).isprintable()
    assert len(str(failed.value)) < 500


async def test_a_proof_in_a_challenge_and_then_an_empty_success_is_a_login(certificates: dict[str, CertificateFiles]) -> None:
    """RFC 6120, 6.4.4 allows both; servers of older RFCs send the proof in this way."""
    context, salt = server_context(certificates["good"]), b"saltsalt"

    def mac(key: bytes, text: str | bytes) -> bytes:
        return hmac.digest(key, text if isinstance(text, bytes) else text.encode(), "sha256")

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(mechanisms("SCRAM-SHA-256"))
        bare = b64decode((await peer.expect("<auth[^>]*>([^<]*)<"))[1]).decode().partition(",,")[2]
        nonce = f"{bare.rpartition('r=')[2]}server"
        first = f"r={nonce},s={b64encode(salt).decode()},i=4096"
        peer.send(f"<challenge xmlns='{SASL}'>{b64encode(first.encode()).decode()}</challenge>")
        final = b64decode((await peer.expect("<response[^>]*>([^<]*)<"))[1]).decode()
        salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, 4096)
        proof = mac(mac(salted, "Server Key"), f"{bare},{first},{final.rpartition(',p=')[0]}")
        peer.send(f"<challenge xmlns='{SASL}'>{b64encode(b'v=' + b64encode(proof)).decode()}</challenge>")
        await peer.expect("<response[^>]*>")
        peer.send(f"<success xmlns='{SASL}'/>")
        await peer.offer(BIND)
        request = await peer.expect(r"<iq[^>]*id=[\"']([^\"']*)[^>]*>")
        bound = BIND.replace("/>", "><jid>a@localhost/agent</jid></bind>")
        peer.send(f"<iq type='result' id='{request[1]}'>{bound}</iq>")
        peer.send(f"<proceed xmlns='{TLS}'/><success xmlns='{SASL}'/><failure xmlns='{SASL}'/>")  # they mean nothing any more
        await peer.drain()

    async with run_script(script) as server:
        connection = connect(server.port, ca_file=certificates["good"].ca_file)
        await connection.open()
        assert connection.security is not None
        assert connection.security.mechanism == "SCRAM-SHA-256"
        connection.client.send_presence()
        await eventually(lambda: "<presence" in server.received)
        assert connection.state == "online"
        await connection.close()


@pytest.mark.parametrize(
    ("jid", "problem"),
    [
        ("operator@localhost/agent", "it opens a session of operator@localhost in place of a@localhost"),
        ("a@elsewhere.example/agent", "it opens a session of a@elsewhere.example in place of a@localhost"),
        ("localhost", "it opens a session of localhost in place of a@localhost"),
        ("", "it opens a session of no account in place of a@localhost"),
        ("a@localhost/other", None),
        ("A@LOCALHOST/agent", None),
    ],
)
async def test_a_session_of_another_account_is_none(
    jid: str, problem: str | None, certificates: dict[str, CertificateFiles]
) -> None:
    """RFC 6120, 7.7: a server may choose another resource, but no other account."""

    async def script(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(server_context(certificates["good"]))
        await peer.offer(mechanisms("PLAIN"))
        await peer.log_in(BIND, jid)
        peer.send("<message from='b@localhost' to='operator@localhost' type='chat'><body>hi</body></message>")
        await peer.drain()

    async with run_script(script) as server:
        connection = connect(server.port, ca_file=certificates["good"].ca_file)
        for _ in range(2):  # the next attempt begins like the first one
            if problem is None:
                await connection.open()
                assert connection.client.boundjid == jid.lower()
            else:
                with pytest.raises(ConnectError, match=re.escape(problem)):
                    await connection.open()
                assert server.received.count("<iq") == len(server.peers)
            await connection.close()
    assert "to='localhost'" in server.peers[-1].secure
