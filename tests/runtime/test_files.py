"""What a stranger's link leads to is fetched within limits, and never from a private network."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    FetchedFile,
    FetchError,
    Files,
    ResponseHandler,
    SessionHandle,
    UploadError,
    fetch,
)
from spade_coreason.runtime.url_policy import is_public
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.web_server import WebServer, page, redirect

WORLD = ("127.0.0.3/32",)
"""In these tests this one address is the public internet; every other of the machine stays private."""


@pytest.fixture
async def secret() -> AsyncIterator[WebServer]:
    """A web server in the private network."""
    async with WebServer({"/": page(b"secret"), "/a": page(b"secret")}, "127.0.0.1") as secret:
        yield secret


@pytest.fixture
async def web(secret: WebServer) -> AsyncIterator[WebServer]:
    """A public web server, on the same port."""
    pages = {"/a%20b.txt": page(b"hello", "Content-Type: Text/Plain; charset=utf-8")}
    async with WebServer(pages, port=secret.port) as web:
        yield web


async def get(url: str, **limits: Any) -> FetchedFile:
    """Fetches from the world of these tests."""
    return await fetch(url, **{"allow_private": WORLD, "timeout_s": 5.0, **limits})


async def refusal(url: str, **limits: Any) -> str:
    """Why it is not fetched."""
    with pytest.raises(FetchError) as caught:
        await get(url, **limits)
    return caught.value.problem


# What comes


async def test_a_file_comes_with_its_name_and_type(web: WebServer) -> None:
    url = web.url("/a%20b.txt")
    assert await get(url) == FetchedFile(url, "a b.txt", "text/plain", b"hello")
    assert "hello" not in repr(await get(url))


async def test_nothing_of_ours_is_told(web: WebServer) -> None:
    await get(web.url("/a%20b.txt"))
    [head] = web.asked
    names = {line.partition(":")[0].lower() for line in head.splitlines()[1:] if line}
    assert names == {"host", "accept", "accept-encoding", "user-agent", "connection"}
    assert "Accept-Encoding: identity" in head


async def test_a_cookie_is_forgotten_at_once(web: WebServer) -> None:
    web.pages["/"] = page(b"", "Location: /a%20b.txt", "Set-Cookie: a=b; Path=/", status="302 Found")
    await get(web.url("/"))
    assert not any("Cookie" in head for head in web.asked)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_redirect_is_followed(web: WebServer, status: str) -> None:
    web.pages["/start"] = redirect("/a%20b.txt", status)
    fetched = await get(web.url("/start"))
    assert (fetched.url, fetched.data) == (web.url("/a%20b.txt"), b"hello")


async def test_five_redirects_are_followed_and_no_more(web: WebServer) -> None:
    web.pages |= {f"/{n}": redirect(f"/{n + 1}") for n in range(6)}
    web.pages["/6"] = page(b"there")
    assert (await get(web.url("/1"))).data == b"there"
    assert await refusal(web.url("/0")) == "it redirects more than 5 times"


@pytest.mark.parametrize(
    ("said", "problem"),
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
async def test_what_is_no_file_is_refused(web: WebServer, said: bytes, problem: str) -> None:
    web.pages["/"] = said.replace(b"{port}", str(web.port).encode())
    assert await refusal(web.url("/")) == problem


@pytest.mark.parametrize("said", [b"220 ESMTP secret\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\nhi"])
async def test_what_is_no_web_server_is_refused_and_not_quoted(web: WebServer, said: bytes) -> None:
    web.pages["/"] = said
    problem = await refusal(web.url("/"))
    assert problem.startswith(("what answers is no web server", "the connection fails"))
    assert "secret" not in problem


async def test_where_nobody_listens_the_connection_fails(web: WebServer) -> None:
    [port] = find_free_ports(1)
    assert await refusal(f"http://127.0.0.3:{port}/") == "the connection fails (ClientConnectorError)"


async def test_a_certificate_of_nobody_is_not_trusted(tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path, ("localhost",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    async with WebServer({"/": page(b"x")}, tls=context) as web:
        problem = await refusal(f"https://127.0.0.3:{web.port}/")
        assert problem == "its certificate is not trusted (ClientConnectorCertificateError)"
        assert web.asked == []


# Limits


async def test_a_file_may_have_all_the_bytes_that_are_allowed(web: WebServer) -> None:
    web.pages["/"] = page(b"x" * 1000)
    assert len((await get(web.url(), max_bytes=1000)).data) == 1000
    assert await refusal(web.url(), max_bytes=999) == "it has more than 999 bytes"


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(page(b"", "Transfer-Encoding: chunked"))
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def _endless_without_a_length(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 0x10000)
        await writer.drain()


@pytest.mark.parametrize("said", [_endless, _endless_without_a_length])
async def test_a_file_without_an_end_is_given_up_at_the_limit(web: WebServer, said: Any) -> None:
    web.pages["/"] = said
    assert await refusal(web.url(), max_bytes=300_000) == "it has more than 300,000 bytes"


async def test_a_length_that_is_a_lie_helps_nobody(web: WebServer) -> None:
    web.pages["/more"] = page(b"x" * 5000, "Content-Length: 10")
    with suppress(FetchError):  # depends on what of it has come when the first ten bytes are read
        assert len((await get(web.url("/more"), max_bytes=100)).data) == 10
    web.pages["/less"] = page(b"x" * 10, "Content-Length: 50")
    assert "web server" in await refusal(web.url("/less"), max_bytes=100)
    web.pages["/two"] = page(b"x" * 10, "Content-Length: 10", "Content-Length: 5")
    assert "web server" in await refusal(web.url("/two"), max_bytes=100)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"])
async def test_a_compressed_file_is_refused_before_it_swells(web: WebServer, coding: str) -> None:
    web.pages["/"] = page(gzip.compress(b"\0" * 1_000_000), f"Content-Encoding: {coding}")
    assert "compresses" in await refusal(web.url(), max_bytes=10_000)


async def _silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)  # a byte now and then is what is tested


@pytest.mark.parametrize("said", [_silent, _dripping])
async def test_the_time_is_for_all_of_it(web: WebServer, said: Any) -> None:
    web.pages["/"] = said
    assert await refusal(web.url(), timeout_s=0.2) == "it took longer than 0.2 s"


async def test_the_time_is_for_all_redirects_together_too(web: WebServer) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.15)  # slower than a third of the time
        writer.write(redirect("/"))

    web.pages["/"] = slow
    assert await refusal(web.url(), timeout_s=0.4) == "it took longer than 0.4 s"


async def test_a_resolver_that_hangs_is_given_up() -> None:
    async def never(host: str, port: int) -> Collection[str]:
        await asyncio.Event().wait()
        return []

    assert await refusal("https://example.org/", timeout_s=0.1, resolve=never) == "it took longer than 0.1 s"


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
async def test_only_types_that_are_wanted_come(web: WebServer, kind: str | None, types: Any, is_taken: bool) -> None:
    web.pages["/"] = page(b"x", *([f"Content-Type: {kind}"] if kind else []))
    if is_taken:
        assert (await get(web.url(), types=types)).data == b"x"
    else:
        assert (await refusal(web.url(), types=types)).startswith("it is ")


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
async def test_no_way_of_writing_an_address_leads_inside(
    web: WebServer, secret: WebServer, host: str, is_redirected: bool
) -> None:
    forged = f"http://{host}:{web.port}/a"
    if is_redirected:
        web.pages["/start"] = redirect(forged.replace("\r\n", " "))
        await refusal(web.url("/start"))
    else:
        await refusal(forged)
    assert secret.asked == []
    assert len(web.asked) == is_redirected


@pytest.mark.parametrize("host", ["127.0.0.3", "127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.3]"])
async def test_without_leave_nothing_of_this_machine_is_reached(web: WebServer, secret: WebServer, host: str) -> None:
    assert "not in the public internet" in await refusal(web.url("/a", host), allow_private=False)
    assert web.asked == secret.asked == []


async def test_an_intranet_is_reached_with_leave(web: WebServer, secret: WebServer) -> None:
    assert (await fetch(secret.url("/a"), allow_private=True)).data == b"secret"
    for networks in (("127.0.0.1/32",), ("10.0.0.0/8", "127.0.0.1"), "127.0.0.1/32"):
        assert (await fetch(secret.url("/a"), allow_private=networks)).data == b"secret"


class Answers:
    """A name server that gives another answer each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> Collection[str]:
        return self.answers.pop(0)


async def test_a_name_that_changes_its_address_after_the_check_gains_nothing(web: WebServer, secret: WebServer) -> None:
    web.pages["/a"] = page(b"public")
    names = Answers(["127.0.0.3"], ["127.0.0.1"])
    assert (await get(web.url("/a", "rebinding.example"), resolve=names)).data == b"public"
    assert names.answers == [["127.0.0.1"]]  # it was asked once
    assert "Host: rebinding.example" in web.asked[0]
    assert secret.asked == []


async def test_a_name_that_changes_its_address_before_a_redirect_is_checked_again(web: WebServer, secret: WebServer) -> None:
    web.pages["/start"] = redirect("/a")
    names = Answers(["127.0.0.3"], ["127.0.0.1"])
    problem = await refusal(web.url("/start", "rebinding.example"), resolve=names)
    assert problem.startswith("rebinding.example is not in the public internet")
    assert secret.asked == []


@pytest.mark.parametrize("answer", [["127.0.0.3", "127.0.0.1"], ["127.0.0.1", "127.0.0.3"], ["127.0.0.3", "::1"]])
async def test_one_private_address_spoils_a_name(web: WebServer, secret: WebServer, answer: list[str]) -> None:
    problem = await refusal(web.url("/a", "mixed.example"), resolve=Answers(answer))
    assert problem.startswith("mixed.example is not in the public internet")
    assert web.asked == secret.asked == []


@pytest.mark.parametrize("answer", [[], ["nonsense"]])
async def test_a_name_without_an_address_is_nowhere(answer: list[str]) -> None:
    assert await refusal("https://nowhere.example/", resolve=Answers(answer)) == "there is no host nowhere.example"


async def test_a_name_that_nobody_can_resolve_is_nowhere() -> None:
    assert (await refusal("https://nowhere.invalid/")).startswith("there is no host")
    assert (await refusal(f"https://{'a' * 70}.example/")).startswith("there is no host")


@pytest.mark.parametrize("port", [1, 22, 25, 53, 110, 445, 1023])
async def test_what_is_no_web_server_is_not_bothered(port: int) -> None:
    assert await refusal(f"http://127.0.0.3:{port}/") == f"no web server is on port {port}"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.3:0/", "http://127.0.0.3:65536/", "http://127.0.0.3:-1/", "http://127.0.0.3:8o/"]
)
async def test_a_port_that_is_none_is_refused(url: str) -> None:
    await refusal(url)


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
async def test_what_is_no_web_link_is_refused(url: str) -> None:
    await refusal(url)


@pytest.mark.parametrize("user", [":", "me", "me:secret"])
async def test_a_link_that_names_a_user_is_refused(web: WebServer, user: str) -> None:
    assert await refusal(web.url("/a", f"{user}@127.0.0.3")) == "it names a user"


async def test_an_error_names_the_link_and_none_of_its_secrets() -> None:
    url = "https://me:pass@example.org/a?token=tok#frag"
    with pytest.raises(FetchError) as caught:
        await fetch(url)
    assert str(caught.value) == "'https://example.org/a' is not fetched: it names a user"
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
def test_what_is_public_is_known(text: str, expected: bool) -> None:
    assert is_public(ip_address(text)) is expected


# The part that an agent gets


async def test_the_type_of_an_upload_is_guessed_from_its_name_and_an_empty_one_is_refused() -> None:
    kept: list[tuple[str, bytes, str]] = []

    async def put(name: str, data: bytes, type: str, progress: Any) -> str:
        kept.append((name, data, type))
        return "https://example.org/1"

    files = Files(put)
    assert await files.upload("a.png", b"1") == "https://example.org/1"
    await files.upload("a", b"2")
    await files.upload("a.png", b"3", "text/plain")
    assert kept == [("a.png", b"1", "image/png"), ("a", b"2", "application/octet-stream"), ("a.png", b"3", "text/plain")]
    with pytest.raises(UploadError, match=r"'a\.txt' is not uploaded: it is empty"):
        await files.upload("a.txt", b"")


@pytest.mark.parametrize(
    ("name", "type"), [("", None), ("..", None), ("a", "text"), ("a", "text/plain\r\nX: y"), ("a", "x/\x00")]
)
async def test_what_no_server_could_keep_is_not_sent(name: str, type: str | None) -> None:
    async def put(*_: object) -> str:
        raise AssertionError("it was sent")

    with pytest.raises(UploadError):
        await Files(put).upload(name, b"1", type)


async def test_a_path_is_no_name() -> None:
    async def put(name: str, *_: object) -> str:
        return name

    assert await Files(put).upload("/home/me/a\x00b.txt", b"1") == "ab.txt"


class Drawing:
    """An agent that answers with a file."""

    manifest = AgentDefinition.simple("drawing")

    def __init__(self, files: Files) -> None:
        self.files = files

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        seen = [(await self.files.fetch(one["url"])).data for one in request.payload.get("attachments", [])]
        await response.markdown(await self.files.upload("seen.txt", b"seen:" + b"".join(seen)))


async def test_an_agent_uploads_and_fetches_in_a_test_too() -> None:
    async with AgentTester(Drawing) as t:
        first = (await t.ask("draw")).text
        assert (t.uploaded[first].data, t.uploaded[first].type) == (b"seen:", "text/plain")
        second = (await t.ask({"query": "again", "attachments": [{"url": first}]})).text
        assert t.uploaded[second].data == b"seen:seen:"
