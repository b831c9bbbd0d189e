"""On a host with IPv4 only: a server whose DNS names IPv6 too, and a first SRV target that refuses.

It prints one JSON object of what the commands have printed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.support.certificates import sign_by_itself
from tests.support.private_host import ADDRESS, prepare_host, serve_names
from tests.support.program import run_command, run_in_background
from tests.support.servers.prosody import prosody
from tests.support.servers.scripted import (
    REGISTER,
    SASL,
    STARTTLS,
    Peer,
    contains_password,
    mechanisms,
    run_script,
    server_context,
)

DOMAIN = "agents.test"
ZONE = """\
@ 60 IN SOA ns.agents.test. root.agents.test. 1 60 60 60 60
@ 60 IN NS ns.agents.test.
ns 60 IN A 127.0.0.1
_xmpp-client._tcp 60 IN SRV 1 0 1 one.agents.test.
_xmpp-client._tcp 60 IN SRV 2 0 {port} two.agents.test.
one 60 IN AAAA 2001:db8::1
one 60 IN A 127.0.0.1
two 60 IN AAAA 2001:db8::1
two 60 IN A 127.0.0.1
plain 60 IN A {address}
"""


def _write(file: Path, server: dict[str, Any], account: tuple[str, str]) -> None:
    agent = {"jid": account[0], "password": account[1], "agent": "spade_coreason.agents.echo:EchoAgent"}
    file.write_text(json.dumps({"server": {"mode": "external", **server}, "data_dir": "data", "agents": [agent]}))
    file.chmod(0o600)


async def main(directory: Path) -> dict[str, object]:
    """Run the commands, and return what they have printed."""
    prepare_host(directory)
    found: dict[str, object] = {}
    with prosody(directory / "server", domain=DOMAIN) as server:
        names = await serve_names(ZONE.format(port=server.port, address=ADDRESS), DOMAIN)
        agent, person = await server.account(), await server.account()
        _write(directory / "platform.yaml", {"tls": {"ca_file": str(server.ca_file)}}, agent)
        checked = await asyncio.to_thread(run_command, "check", "-c", "platform.yaml", cwd=directory)
        found["check"] = [checked.returncode, checked.stdout]

        def ask() -> list[object]:
            with run_in_background("up", "-c", "platform.yaml", cwd=directory, until="^Ready", may_log=["files"]) as up:
                options = ("--jid", person[0], "-c", "platform.yaml")
                env = {"SPADE_COREASON_PASSWORD": person[1]}
                asked = run_command("ask", agent[0], "hello", *options, cwd=directory, env=env)
                shown = up.run_command("status", "-c", "platform.yaml")
                return [asked.returncode, asked.stdout, asked.stderr, shown.stdout]

        found["ask"] = await asyncio.to_thread(ask)
    refused = await asyncio.to_thread(run_command, "check", "-c", "platform.yaml", cwd=directory)
    found["refused"] = [refused.returncode, refused.stdout]

    async def offer_plain(peer: Peer) -> None:
        await peer.offer(mechanisms("PLAIN", "SCRAM-SHA-1"))
        await peer.serve()

    certificate = server_context(sign_by_itself(directory / "certificate", "elsewhere.example"))

    async def offer_unverified(peer: Peer) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(certificate)
        await peer.offer(REGISTER + mechanisms(*("PLAIN", "SCRAM-SHA-1")[: 1 + len(unverified.peers) % 2]))
        await peer.expect("<auth[^>]*>[^<]*</auth>")
        peer.send(f"<failure xmlns='{SASL}'><not-authorized/></failure>")
        await peer.drain()

    async with run_script(offer_unverified, ADDRESS) as unverified:
        for key in ("scram", "plain only"):
            options = ("--host", ADDRESS, "--port", str(unverified.port), "--no-verify", "--register", "--jid", agent[0])
            command = ("run", "spade_coreason.agents.echo:EchoAgent", *options)
            env = {"SPADE_COREASON_PASSWORD": agent[1]}
            done = await asyncio.to_thread(run_command, *command, cwd=directory, env=env)
            found[key] = [done.returncode, done.stderr, contains_password(unverified.received, agent[1])]
    async with run_script(offer_plain, ADDRESS) as plain:
        tls = {"required": False, "verify": False}
        server_settings = {"host": f"plain.{DOMAIN}", "port": plain.port, "tls": tls}
        _write(directory / "platform.yaml", server_settings, agent)
        elsewhere = await asyncio.to_thread(run_command, "check", "-c", "platform.yaml", cwd=directory)
        found["plain"] = [elsewhere.returncode, elsewhere.stdout, plain.received]
    names.close()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
