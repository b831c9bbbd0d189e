"""The configuration of nginx in docker/nginx: nginx accepts it, and passes requests and streams on."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.certificates import sign_by_itself
from tests.support.doors import ExampleDoor, RawClient, request_of, serve, web_settings
from tests.support.page import ADA, DESK, OpenFeed, PageDesk, RunningPage, wish
from tests.support.servers.requirements import find_program, require
from tests.support.wait import TIMEOUT_S

SITE = Path(__file__).parents[2] / "docker" / "nginx" / "agents.conf"
HOST = "agents.example.org"
FRAME = """
pid nginx.pid; error_log stderr warn; daemon off; worker_processes 1;
events { worker_connections 64; }
http {
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    include agents.conf;
}
"""


def write_site(directory: Path, port: int, upstream: int) -> list[str]:
    """Write the configuration for these ports and a certificate of a test. Return the command of nginx."""
    files = sign_by_itself(directory, HOST)
    live = f"/etc/letsencrypt/live/{HOST}"
    site = SITE.read_text()
    for text, other in (
        ("    listen 443 ssl;\n    listen [::]:443 ssl;\n", f"    listen 127.0.0.1:{port} ssl;\n"),
        (f"{live}/fullchain.pem", str(files.certificate)),
        (f"{live}/privkey.pem", str(files.key)),
        ("http://127.0.0.1:8080", f"http://127.0.0.1:{upstream}"),
    ):
        assert text in site
        site = site.replace(text, other)
    (directory / "agents.conf").write_text(site)
    (directory / "nginx.conf").write_text(FRAME)
    return ["nginx", "-p", str(directory), "-c", "nginx.conf", "-e", "stderr"]


@asynccontextmanager
async def run_nginx(command: list[str], port: int) -> AsyncIterator[None]:
    """Run nginx until the block ends."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.servers
async def test_nginx_accepts_the_site_and_passes_requests_and_streams_on(tmp_path: Path) -> None:
    require("nginx", find_program("nginx") is not None)
    [port] = find_free_ports(1)
    settings, door = web_settings(url=f"https://{HOST}", proxies=["127.0.0.1"]), ExampleDoor()
    command = write_site(tmp_path, port, settings.port)
    check = await asyncio.create_subprocess_exec(*command, "-t", stderr=asyncio.subprocess.PIPE)
    _, said = await check.communicate()
    assert (check.returncode, b"syntax is ok" in said, b"[warn]" in said) == (0, True, False), said.decode()
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with serve(settings, door), run_nginx(command, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)
        client = RawClient(reader, writer)
        forged = ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-Host: evil.example"]
        await client.send(request_of("/whoami", *forged, host=HOST))
        found = json.loads((await client.read_reply()).body)
        assert (found["host"], found["scheme"], found["client"]) == (HOST, "https", "127.0.0.1")
        await client.send(request_of("/stream", host=HOST))
        async with asyncio.timeout(TIMEOUT_S):
            await reader.readuntil(b"first")  # before the stream ends
            door.end.set()
            await reader.readuntil(b"last")
        writer.close()


@pytest.mark.servers
async def test_people_chat_in_the_page_behind_nginx(tmp_path: Path) -> None:
    require("nginx", find_program("nginx") is not None)
    [port] = find_free_ports(1)
    (tmp_path / "nginx").mkdir()
    async with (
        RunningPage.open(tmp_path, {"url": f"https://{HOST}", "proxies": ["127.0.0.1"]}) as page,
        run_nginx(write_site(tmp_path / "nginx", port, page.web.port), port),
    ):
        context = ssl.create_default_context(cafile=str(tmp_path / "nginx" / "cert.pem"))
        context.check_hostname = False
        headers = {"Host": HOST, "Origin": f"https://{HOST}", "Content-Type": "application/json"}
        async with httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}", verify=context, headers=headers, timeout=TIMEOUT_S, trust_env=False
        ) as http:
            login = await http.post("/login", content=json.dumps({"link": await page.make_link(ADA)}))
            cookie = login.headers["set-cookie"]
            assert cookie.startswith("__Host-page=")
            assert {"Secure", "HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
            http.headers.update({"X-Page-Key": login.json()["key"], "Cookie": cookie.partition(";")[0]})
            async with http.stream("POST", "/chat/feed", content=json.dumps({"places": [[DESK, "", 40]]})) as reply:
                feed = OpenFeed(reply)
                asked = await http.post("/chat/ask", content=json.dumps({"agent": DESK, "text": wish("hold", text="one")}))
                assert asked.status_code == 200
                assert "one" in str(await feed.find_part())  # before the answer is complete
                PageDesk.release.set()
                assert "one at last" in str((await feed.find_turns(1))[0]["parts"])
