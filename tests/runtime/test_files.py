"""Files behind links of strangers are fetched within limits, and never from a private network."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Files, ResponseHandler, SessionHandle
from spade_coreason.domain.environment.https_trust import HttpsTrust
from spade_coreason.domain.texts.file_names import file_name_of
from spade_coreason.exceptions import FetchError, UploadError
from spade_coreason.runtime import FetchedFile, fetch
from spade_coreason.runtime.url_policy import is_public
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.web_server import WebServer, page, redirect

PUBLIC_NETWORKS = ("127.0.0.3/32",)
"""In these tests this one address is the public internet; every other of the machine stays private."""


@pytest.fixture
async def private_server() -> AsyncIterator[WebServer]:
    """A web server in the private network."""
    [port] = find_free_ports(1)  # no connection of another test takes it at the other address
    async with WebServer({"/": page(b"secret"), "/a": page(b"secret")}, "127.0.0.1", port) as private_server:
        yield private_server


@pytest.fixture
async def public_server(private_server: WebServer) -> AsyncIterator[WebServer]:
    """A public web server, on the same port."""
    pages = {"/a%20b.txt": page(b"hello", "Content-Type: Text/Plain; charset=utf-8")}
    async with WebServer(pages, port=private_server.port) as public_server:
        yield public_server


async def fetch_public(url: str, **limits: Any) -> FetchedFile:
    """Fetch from the public internet of these tests."""
    return await fetch(url, **{"allow_private": PUBLIC_NETWORKS, "timeout_s": 5.0, **limits})


async def fetch_problem(url: str, **limits: Any) -> str:
    """Return the reason why a URL is not fetched."""
    with pytest.raises(FetchError) as caught:
        await fetch_public(url, **limits)
    return caught.value.problem


async def resolve_localhost(host: str, port: int) -> list[str]:
    """Resolve every host to the public internet of these tests."""
    return ["127.0.0.3"]


# What comes


async def test_a_file_comes_with_its_name_and_type(public_server: WebServer) -> None:
    url = public_server.url("/a%20b.txt")
    assert await fetch_public(url) == FetchedFile(url, "a b.txt", "text/plain", b"hello")
    assert "hello" not in repr(await fetch_public(url))


async def test_a_request_reveals_nothing_about_the_agent(public_server: WebServer) -> None:
    await fetch_public(public_server.url("/a%20b.txt"))
    [head] = public_server.requests
    names = {line.partition(":")[0].lower() for line in head.splitlines()[1:] if line}
    assert names == {"host", "accept", "accept-encoding", "user-agent", "connection"}
    assert "Accept-Encoding: identity" in head


async def test_a_cookie_is_forgotten_at_once(public_server: WebServer) -> None:
    public_server.pages["/"] = page(b"", "Location: /a%20b.txt", "Set-Cookie: a=b; Path=/", status="302 Found")
    await fetch_public(public_server.url("/"))
    assert not any("Cookie" in head for head in public_server.requests)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_redirect_is_followed(public_server: WebServer, status: str) -> None:
    public_server.pages["/start"] = redirect("/a%20b.txt", status)
    fetched = await fetch_public(public_server.url("/start"))
    assert (fetched.url, fetched.data) == (public_server.url("/a%20b.txt"), b"hello")


async def test_five_redirects_are_followed_and_no_more(public_server: WebServer) -> None:
    public_server.pages |= {f"/{n}": redirect(f"/{n + 1}") for n in range(6)}
    public_server.pages["/6"] = page(b"there")
    assert (await fetch_public(public_server.url("/1"))).data == b"there"
    assert await fetch_problem(public_server.url("/0")) == "it redirects more than 5 times"


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (page(status="404 Not Found"), "the server answers 404 Not Found"),
        (page(status="206 Partial Content"), "the server answers 206 Partial Content"),
        (page(status="799 Whatever"), "the server answers 799"),
        (page(status="302 Found"), "it redirects to nowhere"),
        (redirect("http://[::1"), "it redirects to what is no URL"),
        (redirect("ftp://example.org/"), "only http and https links are"),
        (redirect("file:///etc/passwd"), "only http and https links are"),
        (redirect("http://me:secret@127.0.0.3:{port}/"), "it names a user"),
    ],
)
async def test_a_response_without_a_file_is_refused(public_server: WebServer, response: bytes, problem: str) -> None:
    public_server.pages["/"] = response.replace(b"{port}", str(public_server.port).encode())
    assert await fetch_problem(public_server.url("/")) == problem


@pytest.mark.parametrize("response", [b"220 ESMTP secret\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\nhi"])
async def test_a_response_of_no_web_server_is_refused_and_not_quoted(public_server: WebServer, response: bytes) -> None:
    public_server.pages["/"] = response
    problem = await fetch_problem(public_server.url("/"))
    assert problem.startswith(("what answers is no web server", "the connection fails"))
    assert "secret" not in problem


async def test_a_port_without_a_listener_is_a_failed_connection(public_server: WebServer) -> None:
    [port] = find_free_ports(1)
    assert await fetch_problem(f"http://127.0.0.3:{port}/") == "the connection fails (Connection refused)"


async def test_a_self_signed_certificate_is_not_trusted(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path, ("localhost",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    async with WebServer({"/": page(b"x")}, tls=context) as public_server:
        problem = await fetch_problem(f"https://127.0.0.3:{public_server.port}/")
        assert problem.startswith("its certificate is not trusted (")
        assert public_server.requests == []


async def test_an_authority_of_an_intranet_is_trusted_beside_those_of_the_system(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path / "intranet", ("localhost",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(ensure_certificate(tmp_path / "other", ("localhost",)).ca_file.read_bytes())
    trust = HttpsTrust(ca_file)
    async with WebServer({"/": page(b"a plan")}, tls=context) as intranet:
        url = f"https://localhost:{intranet.port}/"

        async def fetch_here() -> FetchedFile:
            return await fetch(url, allow_private=True, resolve=resolve_localhost, trust=trust)

        with pytest.raises(
            FetchError, match=r"; for an authority of your own, set server\.tls\.ca_file to its certificate"
        ) as caught:
            await fetch_here()
        assert caught.value.problem.startswith("its certificate is not trusted (unable to get local issuer certificate")
        ca_file.write_bytes(certificate.ca_file.read_bytes())  # while it runs
        assert (await fetch_here()).data == b"a plan"
        ca_file.unlink()
        assert (await fetch_here()).data == b"a plan"
    public = ssl.create_default_context().cert_store_stats()["x509_ca"]
    assert trust.context().cert_store_stats()["x509_ca"] == public + 1


async def test_an_alert_of_tls_is_named(tmp_path: Path) -> None:
    """It was "Operation not permitted", as OpenSSL's error 1 reads where errno is expected."""
    certificate = ensure_certificate(tmp_path, ("localhost",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # TLS 1.3 says it after the handshake, and asyncio may lose it

    def refuse(listener: socket.socket) -> None:
        # asyncio's server would close before the alert is sent.
        tls = context.wrap_socket(listener.accept()[0], server_side=True, do_handshake_on_connect=False)
        with pytest.raises(ssl.SSLError):
            tls.do_handshake()
        with socket.socket(fileno=tls.detach()) as connection:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1024):
                pass

    with socket.create_server(("127.0.0.3", 0)) as listener:
        server = asyncio.create_task(asyncio.to_thread(refuse, listener))
        url = f"https://localhost:{listener.getsockname()[1]}/"
        problem = await fetch_problem(url, resolve=resolve_localhost, trust=HttpsTrust(certificate.ca_file))
        await server
    assert problem == "it refuses TLS (alert: handshake failure)"


async def test_a_link_to_the_files_of_the_own_local_server_may_be_private_and_no_other(public_server: WebServer) -> None:
    own_url = f"http://127.0.0.3:{public_server.port}/file_share/"
    public_server.pages |= {"/file_share/a.txt": page(b"mine"), "/file_share/b.txt": redirect(public_server.url("/secret"))}
    limits: dict[str, Any] = {"allow_private": False, "own_urls": [own_url]}
    assert (await fetch(f"{own_url}a.txt", **limits)).data == b"mine"
    for url in (f"{own_url}../secret", f"{own_url}b.txt", public_server.url("/secret"), own_url.replace(".3:", ".4:")):
        assert (await fetch_problem(url, **limits)).endswith(" is not in the public internet")


# Limits


async def test_a_file_may_have_the_maximal_size(public_server: WebServer) -> None:
    public_server.pages["/"] = page(b"x" * 1000)
    assert len((await fetch_public(public_server.url(), max_bytes=1000)).data) == 1000
    assert await fetch_problem(public_server.url(), max_bytes=999) == "it has more than 999 bytes"


async def _endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(page(b"", "Transfer-Encoding: chunked"))
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def _endless_without_a_length(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 0x10000)
        await writer.drain()


@pytest.mark.parametrize("response", [_endless_chunks, _endless_without_a_length])
async def test_an_endless_file_is_refused_at_the_limit(public_server: WebServer, response: Any) -> None:
    public_server.pages["/"] = response
    assert await fetch_problem(public_server.url(), max_bytes=300_000) == "it has more than 300,000 bytes"


async def test_what_was_read_of_a_file_that_is_too_large_is_freed_at_once(public_server: WebServer) -> None:
    public_server.pages["/"] = _endless_without_a_length
    assert "300,000" in await fetch_problem(public_server.url(), max_bytes=300_000)  # aiohttp is imported now
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        try:
            for _ in range(10):
                with suppress(FetchError):
                    await fetch_public(public_server.url(), max_bytes=300_000)
            kept_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    finally:
        gc.enable()
    assert kept_bytes < 1_500_000


async def test_a_wrong_content_length_does_not_exceed_the_limit(public_server: WebServer) -> None:
    public_server.pages["/more"] = page(b"x" * 5000, "Content-Length: 10")
    with suppress(FetchError):  # depends on what of it has come when the first ten bytes are read
        assert len((await fetch_public(public_server.url("/more"), max_bytes=100)).data) == 10
    public_server.pages["/less"] = page(b"x" * 10, "Content-Length: 50")
    assert "web server" in await fetch_problem(public_server.url("/less"), max_bytes=100)
    public_server.pages["/two"] = page(b"x" * 10, "Content-Length: 10", "Content-Length: 5")
    assert "web server" in await fetch_problem(public_server.url("/two"), max_bytes=100)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"])
async def test_a_compressed_file_is_refused_before_it_is_decompressed(public_server: WebServer, coding: str) -> None:
    public_server.pages["/"] = page(gzip.compress(b"\0" * 1_000_000), f"Content-Encoding: {coding}")
    assert "compresses" in await fetch_problem(public_server.url(), max_bytes=10_000)


async def _no_response(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _slow_bytes(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)  # a byte now and then is what is tested


@pytest.mark.parametrize("response", [_no_response, _slow_bytes])
async def test_the_timeout_covers_the_whole_response(public_server: WebServer, response: Any) -> None:
    public_server.pages["/"] = response
    assert await fetch_problem(public_server.url(), timeout_s=0.2) == "it took longer than 0.2 s"


async def test_the_timeout_covers_all_redirects_together(public_server: WebServer) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.15)  # slower than a third of the time
        writer.write(redirect("/"))

    public_server.pages["/"] = slow
    assert await fetch_problem(public_server.url(), timeout_s=0.4) == "it took longer than 0.4 s"


async def test_a_hanging_resolver_times_out() -> None:
    async def never(host: str, port: int) -> Collection[str]:
        await asyncio.Event().wait()
        return []

    assert await fetch_problem("https://example.org/", timeout_s=0.1, resolve=never) == "it took longer than 0.1 s"


@pytest.mark.parametrize(
    ("kind", "types", "is_taken"),
    [
        ("image/png", ("image/*",), True),
        ("IMAGE/PNG; x=y", ("text/plain", "image/png"), True),
        ("image/svg+xml", ("image/png", "text/*"), False),
        ("text/html", ("image/*",), False),
        (None, ("image/*",), False),
        (None, None, True),
        ("text/html", (), False),
        ("text/html", "image/*", False),
        ("image/png", "image/*", True),
    ],
)
async def test_only_the_wanted_types_are_fetched(
    public_server: WebServer, kind: str | None, types: Any, is_taken: bool
) -> None:
    public_server.pages["/"] = page(b"x", *([f"Content-Type: {kind}"] if kind else []))
    if is_taken:
        assert (await fetch_public(public_server.url(), types=types)).data == b"x"
    else:
        assert (await fetch_problem(public_server.url(), types=types)).startswith("it is ")


@pytest.mark.parametrize("kind", ["image/\x85png", "im\u202eage/png", "image/p ng", "image", "image/png/x", f"{'a' * 200}/b"])
async def test_a_type_that_is_none_is_that_of_any_bytes(public_server: WebServer, kind: str) -> None:
    public_server.pages["/"] = page(b"x", f"Content-Type: {kind}")
    assert (await fetch_public(public_server.url())).type == "application/octet-stream"


def test_a_file_name_has_no_character_that_nobody_sees() -> None:
    assert file_name_of("https://a.example/%E2%80%8Eab%E2%80%8B%E2%80%AEgnp.exe%EF%BB%BF%F3%A0%81%81") == "abgnp.exe"


# Requests that are forged: a link that makes us ask where its sender cannot


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "127.0.0.01",
        "0",
        "0.0.0.0",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "localhost..",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::1]",
        "[fe80::1]",
        "[fe80::1%25lo]",
        "[fc00::1]",
        "[ff02::1]",
        "127\N{IDEOGRAPHIC FULL STOP}0\N{IDEOGRAPHIC FULL STOP}0\N{IDEOGRAPHIC FULL STOP}1",
        "\N{CIRCLED DIGIT ONE}\N{CIRCLED DIGIT TWO}\N{CIRCLED DIGIT SEVEN}.0.0.1",
        "\N{CIRCLED LATIN SMALL LETTER L}ocalhost",
        "%31%32%37.0.0.1",
        "127.0.0.1%00.example.org",
        "127.0.0.1%2eexample.org",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "me@127.0.0.1",
        "127.0.0.3@127.0.0.1",
        "127.0.0.3:80@127.0.0.1",
        "@127.0.0.1",
        ":@127.0.0.1",
        "127.0.0.1\\@127.0.0.3",
        "127.0.0.3\\@127.0.0.1",
        "127.0.0.3%2f@127.0.0.1",
        "127.0.0.3 @127.0.0.1",
        "127.0.0.3\t@127.0.0.1",
        "127.0.0.3\r\nHost: 127.0.0.1",
        "",
    ],
)
@pytest.mark.parametrize("is_redirected", [False, True])
async def test_no_notation_of_an_address_reaches_a_private_network(
    public_server: WebServer, private_server: WebServer, host: str, is_redirected: bool
) -> None:
    forged = f"http://{host}:{public_server.port}/a"
    if is_redirected:
        public_server.pages["/start"] = redirect(forged.replace("\r\n", " "))
        await fetch_problem(public_server.url("/start"))
    else:
        await fetch_problem(forged)
    assert private_server.requests == []
    assert len(public_server.requests) == is_redirected


@pytest.mark.parametrize("host", ["127.0.0.3", "127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.3]"])
async def test_without_permission_no_address_of_this_machine_is_reached(
    public_server: WebServer, private_server: WebServer, host: str
) -> None:
    with pytest.raises(FetchError) as caught:
        await fetch_public(public_server.url("/a", host), allow_private=False)
    assert caught.value.problem.endswith("is not in the public internet")  # people read it, and the developer the whole text
    assert str(caught.value).endswith(f"{caught.value.problem}; allow_private can name networks of your own")
    assert public_server.requests == private_server.requests == []


async def test_with_permission_an_intranet_is_reached(public_server: WebServer, private_server: WebServer) -> None:
    assert (await fetch(private_server.url("/a"), allow_private=True)).data == b"secret"
    for networks in (("127.0.0.1/32",), ("10.0.0.0/8", "127.0.0.1"), "127.0.0.1/32"):
        assert (await fetch(private_server.url("/a"), allow_private=networks)).data == b"secret"


class ScriptedResolver:
    """A name server that gives another answer each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> Collection[str]:
        return self.answers.pop(0)


async def test_a_name_that_changes_its_address_after_the_check_reaches_the_checked_one(
    public_server: WebServer, private_server: WebServer
) -> None:
    public_server.pages["/a"] = page(b"public")
    resolver = ScriptedResolver(["127.0.0.3"], ["127.0.0.1"])
    assert (await fetch_public(public_server.url("/a", "rebinding.example"), resolve=resolver)).data == b"public"
    assert resolver.answers == [["127.0.0.1"]]  # it was asked once
    assert "Host: rebinding.example" in public_server.requests[0]
    assert private_server.requests == []


async def test_a_name_that_changes_its_address_before_a_redirect_is_checked_again(
    public_server: WebServer, private_server: WebServer
) -> None:
    public_server.pages["/start"] = redirect("/a")
    resolver = ScriptedResolver(["127.0.0.3"], ["127.0.0.1"])
    problem = await fetch_problem(public_server.url("/start", "rebinding.example"), resolve=resolver)
    assert problem.startswith("rebinding.example is not in the public internet")
    assert private_server.requests == []


@pytest.mark.parametrize("answer", [["127.0.0.3", "127.0.0.1"], ["127.0.0.1", "127.0.0.3"], ["127.0.0.3", "::1"]])
async def test_a_name_with_one_private_address_is_refused(
    public_server: WebServer, private_server: WebServer, answer: list[str]
) -> None:
    problem = await fetch_problem(public_server.url("/a", "mixed.example"), resolve=ScriptedResolver(answer))
    assert problem.startswith("mixed.example is not in the public internet")
    assert public_server.requests == private_server.requests == []


@pytest.mark.parametrize("answer", [[], ["nonsense"]])
async def test_a_name_without_an_address_is_an_unknown_host(answer: list[str]) -> None:
    assert (
        await fetch_problem("https://nowhere.example/", resolve=ScriptedResolver(answer)) == "there is no host nowhere.example"
    )


async def test_a_name_that_cannot_be_resolved_is_an_unknown_host() -> None:
    assert (await fetch_problem("https://nowhere.invalid/")).startswith("there is no host")
    assert (await fetch_problem(f"https://{'a' * 70}.example/")).startswith("there is no host")


@pytest.mark.parametrize("port", [1, 22, 25, 53, 110, 445, 1023])
async def test_ports_of_other_services_are_refused(port: int) -> None:
    assert await fetch_problem(f"http://127.0.0.3:{port}/") == f"no web server is on port {port}"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.3:0/", "http://127.0.0.3:65536/", "http://127.0.0.3:-1/", "http://127.0.0.3:8o/"]
)
async def test_an_invalid_port_is_refused(url: str) -> None:
    await fetch_problem(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hello",
        "//example.org/",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://127.0.0.3/",
        "gopher://127.0.0.3:6379/_FLUSHALL",
        "dict://127.0.0.3:11211/stats",
        "unix:///var/run/docker.sock",
        "http+unix://%2fvar%2frun%2fdocker.sock/",
        "data:text/plain,hi",
        "aesgcm://127.0.0.3/a#00",
        "http:127.0.0.3",
        "http:///a",
        "https://example.org/" + "a" * 2040,
        "https://example.org/a\r\nX-Injected: 1",
    ],
)
async def test_a_link_that_is_no_web_link_is_refused(url: str) -> None:
    await fetch_problem(url)


@pytest.mark.parametrize("user", [":", "me", "me:secret"])
async def test_a_link_that_names_a_user_is_refused(public_server: WebServer, user: str) -> None:
    assert await fetch_problem(public_server.url("/a", f"{user}@127.0.0.3")) == "it names a user"


async def test_an_error_names_the_link_and_none_of_its_secrets() -> None:
    url = "https://me:pass@example.org/a?token=tok#frag"
    with pytest.raises(FetchError) as caught:
        await fetch(url)
    assert str(caught.value) == "'https://example.org/a' was not fetched: it names a user"
    assert caught.value.url == url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("93.184.216.34", True),
        ("1.1.1.1", True),
        ("2606:4700::1111", True),
        ("::ffff:1.1.1.1", True),
        ("64:ff9b::101:101", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::101:101", False),
        ("::ffff:10.0.0.1", False),
        ("::1.1.1.1", False),
        ("2002:101:101::1", False),
        ("2001:0:101:101::", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("fec0::1", False),
        ("fd00:ec2::254", False),
        ("100::1", False),
        ("5f00::1", False),
        ("0.1.2.3", False),
        ("192.0.0.8", False),
        ("192.0.2.1", False),
        ("192.88.99.1", False),
        ("198.19.0.1", False),
        ("198.51.100.1", False),
        ("203.0.113.1", False),
        ("240.0.0.1", False),
        ("239.1.1.1", False),
    ],
)
def test_public_addresses_are_told_from_private_ones(text: str, expected: bool) -> None:
    assert is_public(ip_address(text)) is expected


# The part that an agent gets


async def test_the_type_of_an_upload_is_guessed_from_its_name_and_an_empty_one_is_refused() -> None:
    uploads: list[tuple[str, bytes, str]] = []

    async def put(name: str, data: bytes, type: str, progress: Any) -> str:
        uploads.append((name, data, type))
        return "https://example.org/1"

    files = Files(put)
    assert await files.upload("a.png", b"1") == "https://example.org/1"
    await files.upload("a", b"2")
    await files.upload("a.png", b"3", "text/plain")
    assert uploads == [("a.png", b"1", "image/png"), ("a", b"2", "application/octet-stream"), ("a.png", b"3", "text/plain")]
    with pytest.raises(UploadError, match=r"'a\.txt' was not uploaded: it is empty"):
        await files.upload("a.txt", b"")


@pytest.mark.parametrize(
    ("name", "type"), [("", None), ("..", None), ("a", "text"), ("a", "text/plain\r\nX: y"), ("a", "x/\x00")]
)
async def test_an_upload_with_an_invalid_name_or_type_is_not_sent(name: str, type: str | None) -> None:
    async def put(*_: object) -> str:
        raise AssertionError("it was sent")

    with pytest.raises(UploadError):
        await Files(put).upload(name, b"1", type)


@pytest.mark.timeout(20)  # the pattern was quadratic: this type took minutes
async def test_a_long_invalid_type_of_an_upload_is_refused_without_delay() -> None:
    async def put(*_: object) -> str:
        raise AssertionError("it was sent")

    with pytest.raises(UploadError):
        await Files(put).upload("a", b"1", "/" * 100_000 + "\n")


async def test_the_path_of_an_upload_is_removed_from_its_name() -> None:
    async def put(name: str, *_: object) -> str:
        return name

    assert await Files(put).upload("/home/me/a\x00b.txt", b"1") == "ab.txt"


class UploadingAgent:
    """An agent that answers with a file."""

    manifest = AgentDefinition.simple("drawing")

    def __init__(self, files: Files) -> None:
        self.files = files

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        seen = [(await self.files.fetch(one["url"])).data for one in request.payload.get("attachments", [])]
        await response.markdown(await self.files.upload("seen.txt", b"seen:" + b"".join(seen)))


async def test_an_agent_uploads_and_fetches_in_a_test_too() -> None:
    async with AgentTester(UploadingAgent) as t:
        first = (await t.ask("draw")).text
        assert (t.uploaded[first].data, t.uploaded[first].type) == (b"seen:", "text/plain")
        second = (await t.ask({"query": "again", "attachments": [{"url": first}]})).text
        assert t.uploaded[second].data == b"seen:seen:"
