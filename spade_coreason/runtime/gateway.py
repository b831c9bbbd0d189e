"""The one door of an agent: every stanza for it enters here, whichever way it came."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from uuid import uuid4
from xml.etree.ElementTree import Element

from ..codec import archive_id, decode, malformed_answer, receipt, voice_for
from ..concurrency import Notices
from ..contracts import ErrorCode
from ..domain.access import Access
from ..domain.jid import bare
from ..domain.messages import Bounce, Incoming, Malformed, Reaction, Refused, Reply, Retraction
from ..domain.value import replace
from .access_requests import Admissions
from .outbound import Send
from .peers import OpenRequests
from .runner import Runner

log = logging.getLogger(__name__)

_A_MINUTE = 30  # answers to one sender's JSON that is no event


class Door:
    """Drops what is no request, refuses strangers once, routes answers to whoever asked, and hands requests to the runner."""

    def __init__(self, runner: Runner, requests: OpenRequests, access: Access, send: Send) -> None:
        self._runner = runner
        self._requests = requests
        self.access = access
        self._send = send
        self.admissions = Admissions(access, runner.store, runner.agent.manifest.metadata.name, send)
        runner.admissions = self.admissions
        self._notices = Notices(_A_MINUTE)
        self.dropped: Counter[str] = Counter()

    def admits(self, jid: str) -> bool:
        """Whether whoever is `jid` is answered."""
        return self.access.admits(jid)

    def deliver(self, stanza: Element) -> asyncio.Future[bool] | None:
        """Takes a `<message/>` in. The future, where there is one, is done when the message may be acknowledged."""
        message = decode(stanza)
        if isinstance(message, Incoming):
            return self.take(self._named(message, stanza))
        if isinstance(message, Reply):
            self._requests.deliver(message)
        elif isinstance(message, Bounce):
            self._requests.bounce(message)
        elif isinstance(message, Malformed):
            self._malformed(message)
        elif isinstance(message, Retraction | Reaction):
            if self.access.admits(message.sender):
                self.refer(bare(message.sender), message)
        else:
            self.dropped["no request"] += 1
        return None

    def refer(self, owner: str, said: Retraction | Reaction) -> None:
        """Takes what somebody says about a message of a conversation of `owner`, who is admitted."""
        if isinstance(said, Retraction):
            self._runner.withdraw(owner, said.stanza_id)
        else:
            self._runner.react(owner, said.stanza_id, said.emojis, said.nickname)

    async def recover(self, stanza: Element) -> asyncio.Future[bool] | None:
        """Takes in a `<message/>` that the archive has kept, when there is room for it.

        Of a stranger, and of what cannot be read, nobody waits for news any more. A duplicate gets no second receipt.
        """
        message = decode(stanza)
        if isinstance(message, Incoming) and self.access.admits(message.sender):
            await self._runner.has_room(message)
            return self.take(self._named(message, stanza), is_late=True)
        if isinstance(message, Reply | Retraction | Reaction):
            return self.deliver(stanza)
        self.dropped["no request"] += 1
        return None

    def _named(self, incoming: Incoming, stanza: Element) -> Incoming:
        """By its archive, where it has no id of its own."""
        if incoming.stanza_id:
            return incoming
        return replace(incoming, archive_id=archive_id(stanza, self._runner.jid))

    def take(self, incoming: Incoming, *, is_late: bool = False) -> asyncio.Future[bool] | None:
        """Takes a request in, as `deliver` does; `is_late` from the archive. In a room admission is decided there."""
        if bare(incoming.sender) == self._runner.jid:
            self.dropped["from itself"] += 1
            return None
        if not incoming.owner and not self.access.admits(incoming.sender):
            self._refuse(incoming)
            return None
        if incoming.wants_receipt and incoming.stanza_id:
            return self._runner.receive(incoming, partial(self._acknowledge, incoming, is_late=is_late))
        return self._runner.receive(incoming)

    def _acknowledge(self, incoming: Incoming, is_new: bool, *, is_late: bool) -> None:
        if is_new or not is_late:
            self._send([receipt(incoming)])

    def _refuse(self, incoming: Incoming) -> None:
        stranger = bare(incoming.sender)
        self.dropped["not admitted"] += 1
        is_asked = self.admissions.ask(stranger)
        if self.admissions.refuses_again(stranger):
            return
        log.info("%s: refuses %s (access.allow)", self._runner.jid, stranger)
        text = "I may not talk with you. Ask whoever runs me for access."
        if is_asked:
            text = "I may not talk with you yet. I have asked whoever runs me, and tell you when I may."
        refusal = Refused(text, ErrorCode.FORBIDDEN)
        voice = voice_for(incoming, uuid4(), self._runner.jid, self._runner.policy.stanza_bytes)
        self._send(voice.say(refusal))

    def _malformed(self, message: Malformed) -> None:
        self.dropped["malformed"] += 1
        if bare(message.sender) == self._runner.jid or not self.access.admits(message.sender):
            return
        if message.request_id is None and not self._notices.may_tell(bare(message.sender)):
            return  # nobody waits for that answer; and a program may answer each of ours in the same way, for ever
        self._send(malformed_answer(message, self._runner.jid, self._runner.policy.stanza_bytes))
