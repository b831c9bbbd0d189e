"""An agent's commands in the menus of clients (XEP-0050): what there is, and the answers to who runs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from slixmpp.plugins.xep_0030 import DiscoItems
from slixmpp.xmlstream.handler import Callback
from slixmpp.xmlstream.matcher import MatchXPath

from ...codec import (
    COMMANDS,
    FORM_NAMESPACE,
    CommandCall,
    CommandProblem,
    CommandStage,
    fitting,
    problem_stanza,
    read_call,
    stage_stanza,
)
from ...domain.jid import bare
from ...runtime import Dialogues, Outcome, Runner
from ..connection.connection import Connection

log = logging.getLogger(__name__)

_INFO = "http://jabber.org/protocol/disco#info"
_ITEMS = "http://jabber.org/protocol/disco#items"
# What a stanza has besides its text, at most: addressee, id, node, session and title.
_ENVELOPE_BYTES = 16_384
_LEAST_TEXT_BYTES = 1024


class AdHoc:
    """Answers for one agent. Only whom `admits` lets in sees or runs anything; who that is, their server has said."""

    def __init__(self, connection: Connection, runner: Runner, admits: Callable[[str], bool]) -> None:
        self._connection = connection
        self._runner = runner
        self._admits = admits
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialogues = Dialogues(runner)
        self._disco = connection.client.plugin["xep_0030"]
        if self.features:
            path = MatchXPath(f"{{jabber:client}}iq/{{{COMMANDS}}}command")
            # slixmpp's own plugin lets whoever knows the id of a session go on with it, and keeps every session for ever.
            connection.client.register_handler(Callback("ad-hoc commands", path, self._called))
            self._disco.set_node_handler("get_items", handler=self._items)

    @property
    def features(self) -> set[str]:
        """What the agent announces."""
        return {COMMANDS} if self._runner.commands.all else set()

    def info(self, node: str, asker: str) -> Element | None:
        """The answer to disco#info on the list, or on a command; None for another node, and for one that is not for them."""
        query = Element(f"{{{_INFO}}}query", {"node": node})
        if node == COMMANDS:
            identity = {"category": "automation", "type": "command-list", "name": "Commands"}
            features = [COMMANDS]
        else:
            found = [command for command in self._of(asker) if command.node == node]
            if not found:
                return None
            identity = {"category": "automation", "type": "command-node", "name": found[0].entry}
            features = [COMMANDS, FORM_NAMESPACE]
        SubElement(query, f"{{{_INFO}}}identity", identity)
        for feature in features:
            SubElement(query, f"{{{_INFO}}}feature", {"var": feature})
        return query

    async def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._dialogues.close()

    def _of(self, asker: str) -> tuple[Any, ...]:
        return self._runner.commands.of(bare(asker)) if asker and self._admits(asker) else ()

    def _items(self, jid: Any, node: str | None, asker: Any, data: Any) -> Any:
        if node != COMMANDS:
            return self._disco.static.get_items(jid, node, asker, data)
        query = Element(f"{{{_ITEMS}}}query", {"node": COMMANDS})
        for command in self._of(str(asker or "")):
            item = {"jid": self._connection.client.boundjid.full, "node": command.node, "name": command.entry}
            SubElement(query, f"{{{_ITEMS}}}item", item)
        return DiscoItems(xml=query)

    def _called(self, iq: Any) -> None:
        call = read_call(iq.xml)
        if call is None:
            return
        sender, ident = iq.xml.get("from", ""), iq.xml.get("id", "")
        if not self._admits(sender):
            call = CommandProblem("forbidden", "I may not talk with you. Ask whoever runs me for access.")
        if isinstance(call, CommandProblem):
            self._connection.send([problem_stanza(sender, ident, call)])
            return
        task = asyncio.create_task(self._answer(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: CommandCall) -> None:
        try:
            said = await self._dialogues.answer(call)
        except Exception:  # a fault of ours; whoever asked is not left waiting
            log.exception("%s: the command %s of %s failed", self._runner.jid, call.node, call.sender)
            said = CommandProblem("internal-server-error", "Something went wrong on my side. Please try again later.")
        if isinstance(said, CommandProblem):
            self._connection.send([problem_stanza(call.sender, call.iq_id, said)])
        else:
            self._complete(call, said)

    def _complete(self, call: CommandCall, stage: CommandStage) -> None:
        limit = self._runner.policy.stanza_bytes
        shown, rest = fitting(stage.text, max(limit - _ENVELOPE_BYTES, _LEAST_TEXT_BYTES))
        if rest:
            shown += "\n…\nThe rest follows as a message."
        self._connection.send([stage_stanza(call, stage._replace(text=shown), limit)])
        if rest:
            self._runner.say(bare(call.sender), Outcome(rest))
