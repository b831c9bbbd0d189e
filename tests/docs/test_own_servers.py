"""The settings that docs/how-to/prosody.md and ejabberd.md give to servers, on real ones, with accounts from their commands."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import DOCS, read_page
from tests.support.program import run_command, run_in_background
from tests.support.servers import ejabberd as ejabberd_server, prosody as prosody_server
from tests.support.servers.kinds import make_server
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

pytestmark = pytest.mark.release

DOMAIN = "example.org"
FEATURES = {"stream management", "carbons", "archive", "offline messages", "rooms", "files"}
MODULES_OF_DEBIAN = (
    *("disco", "roster", "saslauth", "tls", "blocklist", "bookmarks", "carbons", "limits", "pep", "private", "smacks"),
    *("vcard4", "vcard_legacy", "csi_simple", "ping", "register", "time", "uptime", "version", "posix", "offline"),
)


def block(page: str, title: str) -> str:
    """Return the file with a title from a page."""
    [found] = [block.text for block in read_page(DOCS / "how-to" / page).blocks if block.title == title]
    return found


def assert_agents_are_served(server: XmppServer, directory: Path, page: str) -> None:
    """Check that the configuration of a page works on `server`, which has the accounts echo (`secret`) and me (`mine`)."""
    (directory / "platform.yaml").write_text(block(page, "platform.yaml"))
    environment = {
        "SPADE_COREASON_SERVER__HOST": server.host,
        "SPADE_COREASON_SERVER__PORT": str(server.port),
        "SPADE_COREASON_SERVER__TLS__CA_FILE": str(server.ca_file),
        "ECHO_PASSWORD": "secret",
    }
    checked = run_command("check", "-c", "platform.yaml", cwd=directory, env=environment)
    assert checked.returncode == 0, checked.stdout
    features = checked.stdout.splitlines()[-1].partition(f"{server.host}:{server.port}, ")[2].partition(": ")[2].split(", ")
    assert set(features) >= FEATURES
    with run_in_background("up", "-c", "platform.yaml", cwd=directory, env=environment, until="Ready") as up:
        arguments = ("ask", f"echo@{DOMAIN}", "hello", "--jid", f"me@{DOMAIN}")
        asked = run_command(*arguments, cwd=directory, env={"SPADE_COREASON_PASSWORD": "mine"})
        assert (asked.returncode, asked.stdout) == (0, "hello\n"), asked.stderr
        assert up.stop()[0] == 0


@pytest.mark.servers
def test_the_prosody_of_the_page_serves_agents(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    server = prosody_server.prosody(tmp_path, other_domain=DOMAIN)
    settings = "\n".join(
        (
            f"run_as_root = {str(os.getuid() == 0).lower()}",
            f'data_path = "{tmp_path}/data"',
            f'pidfile = "{tmp_path}/prosody.pid"',
            f"c2s_ports = {{ {server.port} }}",
            'interfaces = { "127.0.0.1" }',
            "s2s_ports = {}",
            f"http_ports = {{ {server.http_port} }}",
            'http_interfaces = { "127.0.0.1" }',
            "https_ports = {}",
            f'http_external_url = "http://127.0.0.1:{server.http_port}/"',
            'modules_disabled = { "s2s" }',
            'authentication = "internal_hashed"',
            f'log = {{ {{ levels = {{ min = "info" }}, to = "file", filename = "{tmp_path}/prosody.log" }} }}',
            f'ssl = {{ key = "{server.certificate.key}"; certificate = "{server.certificate.certificate}" }}',
            f"modules_enabled = {{ {' '.join(f'{json.dumps(name)};' for name in (*MODULES_OF_DEBIAN, 'mam'))} }}",
            'limits = { c2s = { rate = "10kb/s" } }',
        )
    )
    common, domain = (block("prosody.md", title) for title in ("global.cfg.lua", "example.org.cfg.lua"))
    configuration = tmp_path / "page.cfg.lua"
    configuration.write_text(f'{settings}\n{common}\nVirtualHost "localhost"\n{domain}\n')

    def prosodyctl(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = ["prosodyctl", "--config", str(configuration), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    for user, password in (("echo", "secret"), ("me", "mine")):
        added = prosodyctl("adduser", f"{user}@{DOMAIN}", stdin=f"{password}\n{password}\n")
        assert added.returncode == 0, added.stdout
    command = ("prosody", "--config", str(configuration), "-F")
    with replace(server, command=command) as started:
        assert_agents_are_served(started, tmp_path, "prosody.md")


def merge(base: dict[str, Any], additions: dict[str, Any]) -> dict[str, Any]:
    """Merge the settings of the page, as its reader does."""
    merged = {key: merge(base[key], value) if isinstance(base.get(key), dict) else value for key, value in additions.items()}
    return {**base, **merged}


@pytest.mark.servers
def test_the_ejabberd_of_the_page_serves_agents(tmp_path: Path) -> None:
    require("ejabberd", ejabberd_server.installed())
    server = ejabberd_server.ejabberd(tmp_path, other_domain=DOMAIN)
    file = tmp_path / "ejabberd.yml"
    base: dict[str, Any] = yaml.safe_load(file.read_text())
    page: dict[str, Any] = yaml.safe_load(block("ejabberd.md", "additions.yml"))
    [upload] = page.pop("listen")
    c2s, _, http = base["listen"]
    c2s["shaper"] = "c2s_shaper"
    http["request_handlers"] |= {**upload["request_handlers"], "/api": "mod_http_api"}
    base["shaper"] = {"normal": {"rate": 3000, "burst_size": 20000}, "fast": 200000}
    base["acl"]["admin"] = {"user": [""]}
    base["api_permissions"] = {"loopback": {"who": [{"ip": "127.0.0.1/8"}], "what": ["register"]}}
    base["modules"]["mod_http_api"] = {}
    page["modules"]["mod_http_upload"]["docroot"] = str(tmp_path / "upload")
    file.write_text(yaml.safe_dump(merge(base, page)))
    with server as started:
        for user, password in (("echo", "secret"), ("me", "mine")):
            # What `ejabberdctl register` calls: without Erlang's distribution, which that program needs.
            arguments = json.dumps({"user": user, "host": DOMAIN, "password": password}).encode()
            url = f"http://127.0.0.1:{started.http_port}/api/register"
            with urllib.request.urlopen(url, arguments, timeout=TIMEOUT_S) as reply:
                assert b"successfully registered" in reply.read()
        assert_agents_are_served(started, tmp_path, "ejabberd.md")


@pytest.mark.parametrize(
    ("kind", "files"), [("prosody", ("example.org.key", "example.org.crt")), ("ejabberd", ("key.pem", "cert.pem"))]
)
def test_a_certificate_of_the_page_is_trusted(kind: str, files: tuple[str, str], tmp_path: Path) -> None:
    server = make_server(kind, tmp_path / "server", other_domain=DOMAIN)
    blocks = read_page(DOCS / "how-to" / f"{kind}.md").blocks
    [text] = [block.text for block in blocks if block.language == "sh" and block.text.startswith("openssl req")]
    command = text.partition("\n" + ("sudo" if kind == "prosody" else "cat"))[0]
    # The server of the tests is asked as localhost, too.
    command = command.replace("DNS:*.example.org", "DNS:*.example.org,DNS:localhost,IP:127.0.0.1")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True, timeout=TIMEOUT_S)
    key, certificate = (tmp_path / name for name in files)
    for file in (server.certificate.certificate, server.certificate.ca_file):
        file.write_bytes(certificate.read_bytes())
    server.certificate.key.write_bytes(key.read_bytes())
    (tmp_path / "server" / "ejabberd.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    (tmp_path / "platform.yaml").write_text(block(f"{kind}.md", "platform.yaml"))
    with server as started:
        _, password = asyncio.run(started.account("echo", domain=DOMAIN))
        environment = {
            "SPADE_COREASON_SERVER__HOST": started.host,
            "SPADE_COREASON_SERVER__PORT": str(started.port),
            "SPADE_COREASON_SERVER__TLS__CA_FILE": str(certificate),
            "ECHO_PASSWORD": password,
        }
        checked = run_command("check", "-c", "platform.yaml", cwd=tmp_path, env=environment)
    assert checked.returncode == 0, checked.stdout
    assert f"✓ echo@{DOMAIN}  logs in" in checked.stdout
