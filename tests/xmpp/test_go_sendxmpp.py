"""A person at a shell with go-sendxmpp: asks and listens, is in a room, sends a file."""

from __future__ import annotations

import secrets
from pathlib import Path

from agents.notes import NotesAgent
from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.runtime import fetch
from tests.support.hosting import Echo, FunctionAgent, run_agent
from tests.support.servers.go_sendxmpp import GoSendxmpp
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually


async def test_go_sendxmpp_asks_and_is_answered(go_sendxmpp: str, real_server: XmppServer, tmp_path: Path) -> None:
    account = await real_server.account()
    program = GoSendxmpp(go_sendxmpp, account, real_server, tmp_path)
    conversation_ids: list[str] = []

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        conversation_ids.append(request.metadata["conversation_id"])
        await response.markdown(f"you said: {request.payload['query']}")

    async with run_agent(FunctionAgent(assist), real_server, tmp_path) as agent, program.listen() as screen:
        # Answers go to the bare JID, so that the listener hears what another run asked.
        await program.send(agent.jid, text="from the shell\n")
        await screen.wait_for_line(f" {agent.jid}: you said: from the shell")
        raw = f"<message to='{agent.jid}' type='chat' id='r1'><body>threaded</body><thread>shell</thread></message>"
        await program.send("--raw", agent.jid, text=raw)
        await screen.wait_for_line(f" {agent.jid}: you said: threaded")
    assert conversation_ids == [f"{account[0]}_{agent.jid}", "shell"]


async def test_go_sendxmpp_is_answered_in_a_room_where_it_names_the_agent(
    go_sendxmpp: str, real_server: XmppServer, tmp_path: Path
) -> None:
    room, echo = f"room-{secrets.token_hex(3)}@muc.localhost", Echo()
    alice, bob = [GoSendxmpp(go_sendxmpp, await real_server.account(), real_server, tmp_path) for _ in range(2)]
    async with run_agent(echo, real_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent:
        await eventually(lambda: agent.host.rooms.states.get(room) == "joined")
        async with bob.listen("-c", "-a", "Bob", room) as screen:
            await eventually(
                lambda: any(occupant.nick == "Bob" for occupant in agent.host.rooms.by_jid[room].occupants.values())
            )
            await alice.send("-c", "-a", "Alice", room, text="hello everybody\n")
            await alice.send("-c", "-a", "Alice", room, text="Echo: hello\n")
            await screen.wait_for_line("Echo: hello")
            await screen.wait_for_line("Alice: hello")
    assert [request.payload["query"] for request in echo.requests] == ["hello"]


async def test_go_sendxmpp_sends_a_file_that_the_agent_fetches(
    go_sendxmpp: str, upload_server: XmppServer, tmp_path: Path
) -> None:
    program = GoSendxmpp(go_sendxmpp, await upload_server.account(), upload_server, tmp_path)

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        [attachment] = request.payload["attachments"]
        fetched = await fetch(attachment["url"], allow_private=True)
        await response.markdown(f"{attachment['name']} says {fetched.data.decode()}")

    (tmp_path / "diary.txt").write_text("it rained")
    async with run_agent(FunctionAgent(assist), upload_server, tmp_path) as agent, program.listen() as screen:
        await program.send("--http-upload", str(tmp_path / "diary.txt"), agent.jid)
        await screen.wait_for_line("diary.txt says it rained")


async def test_notes_reminds_a_person_with_go_sendxmpp(go_sendxmpp: str, real_server: XmppServer, tmp_path: Path) -> None:
    program = GoSendxmpp(go_sendxmpp, await real_server.account(), real_server, tmp_path)
    notes = NotesAgent(AgentDefinition.simple("notes"), AgentInteractionMemory("notes@localhost", tmp_path / "memory"))
    async with run_agent(notes, real_server, tmp_path) as agent, program.listen() as screen:
        await program.send(agent.jid, text="remind me in 1 second to drink\n")
        await screen.wait_for_line(' (UTC): "drink".')
        await screen.wait_for_line(f" {agent.jid}: ⏰ drink")
