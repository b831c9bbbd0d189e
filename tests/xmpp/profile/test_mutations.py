"""Mutated replies of the server about an agent's own account: its profile is published all the same."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from xml.etree.ElementTree import Element

from hypothesis import given, strategies as st
from slixmpp import JID, Iq

from spade_coreason.contracts import AgentDefinition
from spade_coreason.xmpp.profile.card import ProfileCard
from spade_coreason.xmpp.profile.publish import publish
from tests.support.foreign_stanzas import AGENT
from tests.support.mutations import IQS, bounded, many_in_release, mutated

CARD = ProfileCard.from_manifest(AgentDefinition.simple("notes"))
PARTS = [part for part in IQS if "vcard" in part.lower() or "pubsub" in part]


class Account:
    """A server that answers each query with the next of some stanzas, and records what it is to store."""

    def __init__(self, replies: list[Element]) -> None:
        self.boundjid = JID(AGENT)
        self.stored: list[Element] = []
        self._replies = replies

    def make_iq_get(self) -> Iq:
        return self._make("get")

    def make_iq_set(self) -> Iq:
        return self._make("set")

    def _make(self, kind: str) -> Iq:
        iq = Iq()
        iq["type"] = kind

        async def send(timeout: float) -> Any:
            if kind == "set":
                self.stored.append(iq.xml)
            return SimpleNamespace(xml=self._replies.pop(0) if self._replies else Element("{jabber:client}iq"))

        iq.send = send
        return iq


@many_in_release
def test_a_profile_is_published_whatever_the_server_has(count: int) -> None:
    replies = st.lists(st.sampled_from(PARTS).flatmap(lambda part: mutated(("iq",), [AGENT], part=part)), max_size=8)
    with asyncio.Runner() as loop:

        @bounded(count)
        @given(replies)
        def check(replies: list[Element]) -> None:
            account = Account(list(replies))
            assert loop.run(publish(account, CARD, 65536))
            # The server has nothing of the nickname and the picture.
            assert len(account.stored) >= 3

        check()
