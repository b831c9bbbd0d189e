"""An agent's commands in the menus of clients (XEP-0050): the list of commands, and the replies to their users."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from slixmpp.plugins.xep_0030 import DiscoItems
from slixmpp.xmlstream.handler import Callback
from slixmpp.xmlstream.matcher import MatchXPath

from ...concurrency import Tasks
from ...domain.access import NO_ACCESS
from ...domain.forms.adhoc import CommandCall, CommandProblem, CommandStage
from ...domain.forms.commands import CommandResult
from ...domain.jid import bare_jid
from ...domain.texts.translation import translate, use_language
from ...runtime import AdHocSessions, OutboundMessage, Runner
from ..codec import (
    COMMANDS_NAMESPACE,
    FORM_NAMESPACE,
    decode_command_call,
    problem_stanza,
    split_result,
    stage_stanza,
)
from ..connection.connection import Connection
from ..connection.iq_filter import build_iq_error

log = logging.getLogger(__name__)

_DISCO_INFO = "http://jabber.org/protocol/disco#info"
_DISCO_ITEMS = "http://jabber.org/protocol/disco#items"
# The most bytes that a stanza has besides its text: addressee, id, node, session and title.
_ENVELOPE_BYTES = 16_384
_MIN_TEXT_BYTES = 1024


class AdHocCommands:
    """The command menu of one agent. Only senders that `is_allowed` admits see and run commands.

    If it `is_silent`, others get the error of an account that is offline, such as the occupants of its rooms.
    The sender's server vouches for the address.
    """

    def __init__(self, connection: Connection, runner: Runner, is_allowed: Callable[[str], bool], *, is_silent: bool) -> None:
        self._connection = connection
        self._runner = runner
        self._is_allowed = is_allowed
        self._is_silent = is_silent
        self._tasks = Tasks()
        self._sessions = AdHocSessions(runner.executor, runner.languages)
        self._disco = connection.client.plugin["xep_0030"]
        if self.features:
            path = MatchXPath(f"{{jabber:client}}iq/{{{COMMANDS_NAMESPACE}}}command")
            # slixmpp's own plugin lets every sender who knows a session's id continue it, and never deletes a session.
            connection.client.register_handler(Callback("ad-hoc commands", path, self._on_call))
            self._disco.set_node_handler("get_items", handler=self._answer_items)

    @property
    def features(self) -> set[str]:
        """The features that the agent announces: none if it has no commands."""
        return {COMMANDS_NAMESPACE} if self._runner.executor.commands.all else set()

    def build_info(self, node: str, requester: str) -> Element | None:
        """Build the reply to disco#info about the command list or a command.

        None for another node, and for a command that the requester may not run.
        """
        query = Element(f"{{{_DISCO_INFO}}}query", {"node": node})
        if node == COMMANDS_NAMESPACE:
            identity = {"category": "automation", "type": "command-list", "name": "Commands"}
            features = [COMMANDS_NAMESPACE]
        else:
            found = [command for command in self._commands_for(requester) if command.node == node]
            if not found:
                return None
            with use_language(self._runner.languages.of_person(bare_jid(requester))):
                identity = {"category": "automation", "type": "command-node", "name": found[0].menu_label}
            features = [COMMANDS_NAMESPACE, FORM_NAMESPACE]
        SubElement(query, f"{{{_DISCO_INFO}}}identity", identity)
        for feature in features:
            SubElement(query, f"{{{_DISCO_INFO}}}feature", {"var": feature})
        return query

    async def close(self) -> None:
        """Cancel the replies in progress and end the sessions."""
        await self._tasks.cancel()
        await self._sessions.close()

    def _commands_for(self, requester: str) -> tuple[Any, ...]:
        return (
            self._runner.executor.commands.available_to(bare_jid(requester))
            if requester and self._is_allowed(requester)
            else ()
        )

    def _answer_items(self, jid: Any, node: str | None, requester: Any, data: Any) -> Any:
        if node != COMMANDS_NAMESPACE:
            return self._disco.static.get_items(jid, node, requester, data)
        query = Element(f"{{{_DISCO_ITEMS}}}query", {"node": COMMANDS_NAMESPACE})
        person = str(requester or "")
        for command in self._commands_for(person):
            with use_language(self._runner.languages.of_person(bare_jid(person))):
                label = command.menu_label
            item = {"jid": self._connection.client.boundjid.full, "node": command.node, "name": label}
            SubElement(query, f"{{{_DISCO_ITEMS}}}item", item)
        return DiscoItems(xml=query)

    def _on_call(self, iq: Any) -> None:
        call = decode_command_call(iq.xml)
        if call is None:
            return
        sender, iq_id = iq.xml.get("from", ""), iq.xml.get("id", "")
        if self._is_silent and not self._is_allowed(sender):
            self._send(sender, build_iq_error(iq.xml))
            return
        language = call.language if isinstance(call, CommandCall) else None
        with use_language(self._runner.languages.of_person(bare_jid(sender), language)):
            self._accept(call, sender, iq_id)

    def _accept(self, call: CommandCall | CommandProblem, sender: str, iq_id: str) -> None:
        if not self._is_allowed(sender):
            call = CommandProblem("forbidden", translate(NO_ACCESS))
        if isinstance(call, CommandProblem):
            self._send(sender, problem_stanza(sender, iq_id, call))
            return
        self._tasks.start(self._answer(call))

    async def _answer(self, call: CommandCall) -> None:
        try:
            reply = await self._sessions.answer(call)
        except Exception:  # an error in this program: the sender still gets a reply
            log.exception("%s: the command %s of %s failed", self._runner.jid, call.node, call.sender)
            reply = CommandProblem(
                "internal-server-error", translate("Something went wrong on my side. Please try again later.")
            )
        if isinstance(reply, CommandProblem):
            self._send(call.sender, problem_stanza(call.sender, call.iq_id, reply))
        else:
            self._send_stage(call, reply)

    def _send(self, to: str, stanza: str) -> None:
        self._connection.send([OutboundMessage(to, stanza)])

    def _send_stage(self, call: CommandCall, stage: CommandStage) -> None:
        limit = self._runner.policy.limits.stanza_bytes
        text, rest = split_result(stage.text, max(limit - _ENVELOPE_BYTES, _MIN_TEXT_BYTES))
        if rest:
            text += "\n…\n" + translate("The rest follows as a message.")
        self._send(call.sender, stage_stanza(call, stage._replace(text=text), limit))
        if rest:
            self._runner.executor.send_command_result(bare_jid(call.sender), CommandResult(rest))
