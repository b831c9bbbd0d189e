"""The round table of config/round_table.yaml: a moderator and two agents in one room with people, up to a limit of turns."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from spade_coreason.app.platform import Platform
from spade_coreason.config.loader import load_settings
from tests.support.hosting import PROJECT
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.xmpp.muc.test_rooms import Person, new_room


async def test_people_and_three_agents_talk_in_one_room_up_to_a_limit(real_server: XmppServer, tmp_path: Path) -> None:
    room, text = new_room(), (PROJECT / "config" / "round_table.yaml").read_text(encoding="utf-8")
    text = text.replace("tea@conference.example.org", room)
    passwords: dict[str, str] = {}
    for name in ("table", "echo", "notes"):
        jid, passwords[f"{name.upper()}_PASSWORD"] = await real_server.account(f"{name}-{secrets.token_hex(3)}")
        text = text.replace(f"{name}@example.org", jid)
    server_settings = f"host: {real_server.host}\n  port: {real_server.port}\n  tls: {{ca_file: {real_server.ca_file}}}"
    text = text.replace("mode: external", f"mode: external\n  {server_settings}")
    (tmp_path / "round_table.yaml").write_text(f"{text}\ndata_dir: {tmp_path}/data\n")
    async with (
        StockClient(*await real_server.account(), real_server) as alice_client,
        StockClient(*await real_server.account(), real_server) as bob_client,
    ):
        alice, bob = await Person(alice_client, room, "Alice").enter(), await Person(bob_client, room, "Bob").enter()
        settings = load_settings(tmp_path / "round_table.yaml", PROJECT, {**os.environ, **passwords})
        async with Platform(settings) as platform:
            await eventually(lambda: all(agent.rooms.states[room] == "joined" for agent in platform.agents.values()))
            alice.say("Table: spring?")
            said = [(await alice.receive_from("Table"))["body"] for _ in range(4 + 1)]
            speakers = [line.removeprefix("Alice: ").partition("-")[0] for line in said]
            assert speakers == ["*echo", "*notes", "*echo", "*notes", "That was our round table: 4 contributions."]
            assert said[0].endswith("*: spring?")
            assert said[1].replace("*", "") in said[2]  # echo has heard what notes said
            # The others hear the moderator, who does not address them; people talk to them themselves.
            assert {line.partition("|")[0] for line in await bob.receive_until("thank you")} == {"Alice", "Table"}
            bob.say("Echo: and you?")
            assert (await alice.receive_from("Echo"))["body"] == "Bob: and you?"
            assert await alice.receive_until("end") == []
