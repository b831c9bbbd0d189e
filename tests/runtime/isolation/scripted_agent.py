"""An agent whose queries are the names of its methods, each of which uses a part of the interface."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from spade_coreason import (
    AgentDefinition,
    AgentInteractionMemory,
    AgentRequest,
    Files,
    Interaction,
    Knowledge,
    Peers,
    People,
    Response,
    Session,
    Usage,
    command,
    every,
)
from spade_coreason.contracts import CloudEvent, NodeStart
from spade_coreason.exceptions import PeerError


class UncatchableError(BaseException):
    """An error that no `except Exception` catches."""


async def describe_error(work: Any) -> str:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the test compares it
        return f"{type(error).__name__}: {error}"
    return "no error"


class ScriptedAgent:
    """Plays a script."""

    def __init__(
        self,
        manifest: AgentDefinition,
        memory: AgentInteractionMemory,
        peers: Peers,
        knowledge: Knowledge,
        files: Files,
        usage: Usage,
        people: People,
        greeting: str = "hello",
    ) -> None:
        self.manifest = manifest
        self.memory = memory
        self.peers = peers
        self.knowledge = knowledge
        self.files = files
        self.usage = usage
        self.people = people
        self.greeting = greeting
        self.seen: list[str] = []

    async def startup(self) -> None:
        self.seen.append("startup")

    def shutdown(self) -> None:
        self.seen.append("shutdown")

    async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
        self.seen.append(f"{interaction.input} {reactions}")

    def on_conversation_end(self, conversation_id: str, state: str) -> None:
        self.seen.append(f"{conversation_id.partition('#')[0][:5]} {state}")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> Any:
        script = getattr(self, f"play_{request.payload['query'].replace(' ', '_')}")
        return await script(request, session, response)

    @command("count", "count the visits", step="how many at once")
    async def count(self, session: Session, step: int = 1) -> str | None:
        if step == 0:
            raise ValueError("a secret")
        if step < 0:
            return None
        await session.store("visits", await session.get("visits", 0) + step)
        return f"{await session.get('visits')} visits"

    async def play_blocks(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.thought("hm")
        await response.thought("done", "COMPLETE")
        await response.step("a tool")
        await response.markdown("**one**")
        await response.data({"a": [1, {"b": None}], "ü": 1.5}, "title", "TABLE")
        await response.ask("which?", ["a", "b"])
        await response.markdown(self.greeting * 20_000)

    async def play_streams(self, request: AgentRequest, session: Session, response: Response) -> None:
        first, second = await response.create_stream("first"), await response.create_stream()
        for number in range(100):
            await first.write(f"{number} ")
            await second.write(f"{-number} ")
        await first.close()
        await first.close()
        await second.replace("instead", "better")
        third, fourth = await response.create_stream(), await response.create_stream()
        await third.write("broken")
        await third.abort("no more")
        await fourth.write("left open")
        await response.data({"active": [stream.is_active for stream in (first, second, third, fourth)]})
        await response.markdown(await describe_error(first.write("x")))
        await response.markdown(await describe_error(fourth.write(7)))  # type: ignore[arg-type]  # the point of the test

    async def play_wrong_calls(self, request: AgentRequest, session: Session, response: Response) -> None:
        wrong: Any = response
        for work in (
            wrong.markdown(7),
            wrong.thought(None),
            wrong.thought("x", "MAYBE"),
            wrong.ask("which?", []),
            wrong.ask("which?", ["x"] * 21),
            session.store("", 1),
            session.store("key", object()),
            session.store("key", {1: 2}),
            session.store("coreason.tokens", 1),
            session.store("key", 1, scope="room"),  # type: ignore[arg-type]  # the point of the test
            self.peers.ask("nobody@localhost", "hello"),
            self.peers.ask("agent@localhost", "myself"),
            self.knowledge.add("text", ""),
            self.files.upload("empty", b""),
            self.memory.aadd_information("c", ""),
        ):
            await response.markdown(await describe_error(work))
        for data in ({"a": object()}, "no object"):
            await response.markdown((await describe_error(wrong.data(data))).partition(":")[0])

    async def play_refused(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Send what an interceptor refuses."""
        await response.markdown(await describe_error(response.markdown("refused")))
        await response.markdown("refused")

    async def play_steps(self, request: AgentRequest, session: Session, response: Response) -> None:
        async def charge(amount: int, *, idempotency_key: str) -> object:
            await asyncio.sleep(0)
            return {"amount": (amount, None), "key": idempotency_key}

        results = await asyncio.gather(*(session.run_once("charge", charge, amount) for amount in range(3)))
        results.append(await session.run_once("ü", lambda: "now", on_uncertain="fail"))
        await response.data({"results": results})
        wrong: Any = session
        for work in (
            wrong.run_once("", charge, 1),
            wrong.run_once("charge", charge, object()),
            wrong.run_once("charge", charge, float("nan")),
            wrong.run_once("object", object),
            wrong.run_once("large", lambda: "x" * 2**20),
            wrong.run_once("zero", lambda: 1 / 0),
            wrong.run_once("charge", charge, 1, on_uncertain="hope"),
        ):
            await response.markdown(await describe_error(work))

    async def play_session(self, request: AgentRequest, session: Session, response: Response) -> None:
        before = await session.get("list", "nothing")
        await session.store("list", [1, "ü", {"a": None}])
        await session.store("here", True, scope="conversation")
        await session.store("everywhere", 2.5, scope="person")
        values = [await session.get(key) for key in ("list", "here", "everywhere", "missing")]
        history = [turn.model_dump(mode="json", include={"input", "output", "lineage"}) for turn in await session.history(5)]
        window = [turn.input for turn in await session.window()]
        found = await session.recall("everywhere")
        identity = session.identity.model_dump()
        await response.data({"before": before, "values": values, "window": window, "found": found, "identity": identity})
        await response.data(
            {"count": len(history), "summary": session.summary, "is same": session.session_id == str(request.session_id)}
        )

    async def play_request(self, request: AgentRequest, session: Session, response: Response) -> None:
        fields = request.dump(exclude={"request_id", "session_id", "root_request_id", "created_at"})
        fields["metadata"].pop("conversation_id")
        await response.data(
            {"request": fields, "is utc": str(request.created_at.tzinfo), "root": request.root_request_id == request.request_id}
        )

    async def play_events(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.emit(CloudEvent(type="org.example.test", source="urn:test", data={"a": 1}))
        await response.emit(NodeStart(run_id="r", node_id="n", timestamp=1.5))
        await response.log("WARNING", "a line", {"a": 1})
        await response.audit("me", "read", "it", True)
        await response.emit(CloudEvent(type="ai.coreason.llm.usage", source="urn:test", data={"total_tokens": 5}))
        await response.data({"tokens": await self.usage.of_agent(), "soon": self.usage.until_next_day.days})

    async def play_memory(self, request: AgentRequest, session: Session, response: Response) -> None:
        name = request.metadata["conversation_id"]
        await self.memory.aadd_information(name, "one")
        self.memory.add_information(name, "two")
        await asyncio.to_thread(self.memory.add_information, name, "three")
        removed = self.memory.remove_information(name, "three", "unknown"), await self.memory.aremove_information(name, "x")
        self.memory.add_information("other", "one")
        await self.memory.aadd_information("another", "one")
        conversations = len(self.memory.get_all_conversations())
        cleared = self.memory.clear_conversations(["other", "another", "unknown"])
        await response.data(
            {"known": self.memory.get_information(name), "summary": await self.memory.aget_context_summary(name)}
            | {"removed": removed, "conversations": conversations, "cleared": cleared}
        )
        try:
            await self.memory.aadd_information(name, "x" * 100_000)
        except ValueError as error:
            await response.markdown(str(error))

    async def play_knowledge(self, request: AgentRequest, session: Session, response: Response) -> None:
        outcomes = [await self.knowledge.add("The Spree flows through Berlin.", "spree") for _ in range(2)]
        [hit] = await self.knowledge.search("Spree")
        [document] = await self.knowledge.list()
        recalled = await session.recall("Spree", threshold=0.1)
        removed = [await self.knowledge.remove("spree") for _ in range(2)]
        await response.data(
            {"outcomes": outcomes, "hit": [hit.text, hit.score, hit.document, hit.passage], "recalled": recalled}
        )
        await response.data({"document": [document.name, document.passages, document.characters], "removed": removed})

    async def play_peers(self, request: AgentRequest, session: Session, response: Response) -> None:
        answer = await self.peers.ask("peer@localhost", {"query": "how?"})
        types = [event.type async for event in self.peers.stream("peer@localhost", request.create_child({"query": "stream"}))]
        await self.peers.tell("peer@localhost", "just so")
        both = await asyncio.gather(*(self.peers.ask("peer@localhost", f"number {number}") for number in range(5)))
        await response.data({"text": answer.text, "types": types, "both": [one.text for one in both]})
        try:
            await self.peers.ask("peer@localhost", "fail")
        except PeerError as error:
            await response.data({"error": type(error).__name__, "code": getattr(error, "code", None), "jid": error.jid})

    async def play_leave_a_stream(self, request: AgentRequest, session: Session, response: Response) -> None:
        async with aclosing(self.peers.stream("peer@localhost", "endless")) as events:
            await response.markdown((await anext(events)).data["content"])

    async def play_files(self, request: AgentRequest, session: Session, response: Response) -> None:
        progress: list[tuple[int, int]] = []
        link = await self.files.upload("a ü.txt", b"\x00\xff" * 50_000, progress=lambda *numbers: progress.append(numbers))
        await response.data({"link": link, "progress": progress, "known": self.files.has_uploaded(link)})
        await response.markdown(link)

    async def play_error(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.error("No such city.", {"secret": "inside"}, recoverable=True)

    async def play_end(self, request: AgentRequest, session: Session, response: Response) -> None:
        session.end()
        await response.markdown("the end")

    async def play_seen(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.data({"seen": self.seen})

    async def play_return(self, request: AgentRequest, session: Session, response: Response) -> str:
        return "nobody hears this"

    async def play_raise(self, request: AgentRequest, session: Session, response: Response) -> None:
        await session.store("before the fault", 1)
        await response.markdown("begun")
        raise ZeroDivisionError("a secret")

    async def play_exit(self, request: AgentRequest, session: Session, response: Response) -> None:
        sys.exit("a secret")

    async def play_interrupt(self, request: AgentRequest, session: Session, response: Response) -> None:
        raise KeyboardInterrupt("a secret")

    async def play_cancel_itself(self, request: AgentRequest, session: Session, response: Response) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel("a secret")
        await asyncio.Event().wait()

    async def play_base_exception(self, request: AgentRequest, session: Session, response: Response) -> None:
        raise UncatchableError("a secret")

    async def play_timeout(self, request: AgentRequest, session: Session, response: Response) -> None:
        raise TimeoutError("a secret")

    async def play_group(self, request: AgentRequest, session: Session, response: Response) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.play_timeout(request, session, response))

    async def play_wait(self, request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await response.markdown("I wait")
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise

    async def play_late(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Use the response after the end of the turn."""

        async def use_late() -> None:
            await asyncio.sleep(0.01)
            self.seen.append(await describe_error(response.markdown("too late")))
            self.seen.append(await describe_error(session.store("key", 1)))

        self.task = asyncio.create_task(use_late())

    async def play_initiative(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Notify, remind, and do what is refused."""
        if "schedule" in request.metadata:
            await response.markdown(f"due on {request.metadata['channel']}: {sorted(request.payload)}")
            return
        soon = datetime.now(UTC) + timedelta(days=1)
        made = [
            await session.remind(soon, {"query": "initiative", "at": 1}),
            await session.remind(timedelta(days=2), {"query": "initiative"}),
            await session.remind("0 8 * * mon-fri", "initiative", missed="skip"),
        ]
        listed = await session.schedules()
        kinds = [(one.kind, one.owner, one.cron, one.zone, one.missed, one.payload, one.state) for one in listed]
        cancelled = [await session.cancel_schedule(one) for one in (*made, "no such")]
        notification = await self.people.notify("friend@localhost", "hello", thread="t")
        errors = [
            await describe_error(session.remind(datetime(2026, 1, 1), "x")),
            await describe_error(session.remind("every day", "x")),
            await describe_error(session.remind(timedelta(seconds=-1), "x")),
            await describe_error(session.remind(timedelta(1), 3)),  # type: ignore[arg-type]  # it is refused
            await describe_error(self.people.notify("friend", "hello")),
            await describe_error(self.people.notify("friend@localhost", " ")),
            await describe_error(self.people.outcome("00000000-0000-4000-8000-000000000000")),
        ]
        asked = [notification.person, notification.thread, str(notification.state), notification.reason]
        again = (await self.people.outcome(notification.id)).id == notification.id
        await response.data({"kinds": kinds, "cancelled": cancelled, "asked": asked, "again": again, "errors": errors})

    async def play_job(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Begin work that takes long, and do it."""
        if "schedule" in request.metadata:
            await response.markdown(f"done: {request.payload['what']}")
        else:
            await session.later({"query": "job", "what": "bread"})

    @every("0 6 * * *", zone="Europe/Berlin")
    async def every_morning(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Say when it was due."""
        self.seen.append(f"{request.metadata['every']} {request.metadata['channel']}")
        await session.store("mornings", await session.get("mornings", 0) + 1, scope="agent")
