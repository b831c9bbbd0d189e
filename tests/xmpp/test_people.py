"""A person on a real server is deleted, and looked for in every file of the data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spade_coreason.app.platform import Platform
from spade_coreason.config.loader import load_settings
from tests.support.errors import ExpectedErrors
from tests.support.hosting import PROJECT, RunningPlatform
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.tester_host import find_text
from tests.support.wait import eventually
from tests.xmpp.muc.test_rooms import Person, new_room

SECRET, OTHERS, NICK = "marzipan", "rhubarb", "Marchpane"
AGENTS = "tests.support.keeping_agents"


def write_settings(server: XmppServer, directory: Path, *agents: dict[str, Any], **settings: Any) -> Path:
    directory.mkdir()
    data_dir = str(directory / "data")
    settings = {"server": server.settings, "data_dir": data_dir, "agents": list(agents), "interceptors": [], **settings}
    (directory / "platform.yaml").write_text(json.dumps(settings))
    return directory / "platform.yaml"


async def test_nothing_of_a_deleted_person_is_in_any_file_of_the_platform(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("incident")
    room = new_room()
    asker, keeper, topics, outside = [await prosody.account() for _ in range(4)]
    here = write_settings(
        prosody,
        tmp_path / "here",
        {
            "jid": asker[0],
            "password": asker[1],
            "agent": f"{AGENTS}:Asker",
            "options": {"ask": [keeper[0], outside[0]]},
        },
        {
            "jid": keeper[0],
            "password": keeper[1],
            "agent": f"{AGENTS}:Keeper",
            "rooms": [{"jid": room, "nick": "Keeper"}],
        },
        {"jid": topics[0], "password": topics[1], "agent": "spade_coreason.agents.topics:TopicBroker"},
        peers={"topics": topics[0]},
    )
    elsewhere = write_settings(
        prosody, tmp_path / "elsewhere", {"jid": outside[0], "password": outside[1], "agent": f"{AGENTS}:Keeper"}
    )
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        StockClient(*await prosody.account(), prosody) as bob,
        Platform(load_settings(here, PROJECT, {})) as platform,
        Platform(load_settings(elsewhere, PROJECT, {})) as other,
    ):
        await eventually(lambda: platform.agents[keeper[0]].rooms.states[room] == "joined")
        for person, word, nick in ((alice, SECRET, NICK), (bob, OTHERS, "Bobby")):
            occupant = await Person(person, room, nick).enter(muc__roomconfig_whois="anyone")
            assert await person.ask(f"{word} by way of others", asker[0]) == f"kept {word} by way of others"
            assert await person.ask(f"{word} in person", keeper[0]) == f"kept {word} in person"
            assert "incident" in await person.ask(f"{word} fail", keeper[0])
            occupant.say(f"Keeper: {word} in the room")
            assert word in (await occupant.receive_from("Keeper"))["body"]
            await RunningPlatform(platform).call(
                "knowledge.add", agent=keeper[0], person=person.jid, name=word, text=f"{word} is good"
            )
        traces = (SECRET, alice.jid, alice.jid.partition("@")[0], NICK)
        files = {found.partition(":")[0] for found in find_text(here.parent / "data", *traces)}
        assert {"platform.db-wal"} < files

        alice.send("/forget everywhere yes", asker[0])
        while (reply := await alice.answer())["from"].bare != asker[0]:
            assert reply["from"].bare == room
        assert f"{asker[0]}: Deleted: 1 conversation, 1 turn" in reply["body"]
        await platform.agents[asker[0]].runtime.runner.mailboxes.wait_until_idle()
        assert find_text(here.parent / "data", *traces) == []
        assert len(find_text(here.parent / "data", OTHERS)) >= 2

        # The other platform does not trust the agent that has asked it, and was not told for whom.
        assert find_text(elsewhere.parent / "data", alice.jid) == []
        deleted = await RunningPlatform(other).call("people.delete", person=alice.jid)
        assert [(one.agent, one.turns) for one in deleted.may_hold_more] == [(outside[0], 2)]
        assert find_text(elsewhere.parent / "data", SECRET)

        # New messages begin anew.
        assert await alice.ask("hello", keeper[0]) == "kept hello"
