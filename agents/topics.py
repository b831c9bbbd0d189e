"""A topic broker: agents publish items to topics, and it delivers them to the agents that subscribe."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    ConfigError,
    ResponseHandler,
    Session,
    command,
)
from spade_coreason.domain.jid import bare_jid
from spade_coreason.domain.messages import find_root
from spade_coreason.domain.texts.translation import N_, translate, translate_plural
from spade_coreason.domain.topics import PUBLISH, SUBSCRIBE, TopicRules, check_pattern, check_topic
from spade_coreason.runtime import TopicStore

_MAX_PATTERNS = 1000
_RETENTION = {"items": 1000, "days": 30}


class TopicBroker:
    """Passes items that agents publish on to the agents that subscribe to their topics.

    `publish` and `subscribe` have lists of JIDs, domains and "*" by pattern; by default everybody who may talk to the broker
    may do both. `retention` limits the `items` of a topic and their age in `days`; None means no limit. After `attempts` failed
    attempts an item becomes a dead letter. `retry_s` is the delay before the first repetition.
    """

    def __init__(
        self,
        manifest: AgentDefinition,
        topic_store: TopicStore,
        publish: Mapping[str, list[str]] | None = None,
        subscribe: Mapping[str, list[str]] | None = None,
        retention: Mapping[str, float | None] | None = None,
        attempts: int = 10,
        retry_s: float = 1.0,
    ) -> None:
        self._manifest = manifest
        self._store = topic_store
        self._publish_rules = _read_rules("publish", publish)
        self._subscribe_rules = _read_rules("subscribe", subscribe)
        self._retention = _read_retention(retention)
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise ConfigError("options.attempts", "must be a whole number of at least 1")
        if not _is_positive(retry_s):
            raise ConfigError("options.retry_s", "must be a number of seconds above 0")
        self._attempts = attempts
        self._retry_s = float(retry_s)

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    async def startup(self) -> None:
        """Begin to deliver, also what an earlier run left."""
        items, days = self._retention["items"], self._retention["days"]
        await self._store.open(
            may_subscribe=self._may_subscribe,
            attempts=self._attempts,
            items=None if items is None else int(items),
            days=days,
            retry_s=self._retry_s,
        )

    async def shutdown(self) -> None:
        """Stop to deliver."""
        await self._store.close()

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        """Store an item, or the subscriptions of an agent."""
        session.end()  # each request stands for itself, so that no limit of a conversation applies
        capability = request.metadata.get("capability")
        if request.metadata["channel"] == "program" and capability == PUBLISH:
            await self._publish(request, response)
        elif request.metadata["channel"] == "program" and capability == SUBSCRIBE:
            await self._subscribe(request, response)
        else:
            await response.markdown(
                translate("I pass items of topics on between agents. Agents write to me with `peers.publish` and `@subscribe`.")
            )

    async def _publish(self, request: AgentRequest, response: ResponseHandler) -> None:
        publisher, payload = bare_jid(request.metadata["sender"]), request.payload.get("payload")
        try:
            topic = check_topic(request.payload.get("topic"))
            if not isinstance(payload, dict):
                raise ValueError("the payload of an item is a JSON object")
        except ValueError as error:
            await response.error(str(error))
            return
        if not self._publish_rules.is_allowed(publisher, topic):
            text = translate("{jid} may not publish to the topic {topic}.", jid=publisher, topic=topic)
            await response.data({"refused": text})
            return
        hops = request.metadata.get("hops", 0)
        try:
            root = find_root(request.metadata)
            item_id = await self._store.publish(
                topic,
                payload,
                publisher=publisher,
                request_id=request.request_id,
                hops=hops,
                root="" if root == publisher else root,
            )
        except ValueError as error:
            await response.error(str(error))
            return
        await response.data({"item_id": item_id})
        self._store.note_presence(publisher)

    async def _subscribe(self, request: AgentRequest, response: ResponseHandler) -> None:
        subscriber, patterns = bare_jid(request.metadata["sender"]), request.payload.get("patterns")
        try:
            if not isinstance(patterns, list) or len(patterns) > _MAX_PATTERNS:
                raise ValueError(f"patterns is a list of at most {_MAX_PATTERNS} patterns, such as ['news/#']")
            checked = [check_pattern(pattern) for pattern in patterns]
        except ValueError as error:
            await response.error(str(error))
            return
        allowed = [pattern for pattern in checked if self._may_subscribe(subscriber, pattern)]
        await self._store.subscribe(subscriber, allowed)
        await response.data({"patterns": allowed, "refused": [pattern for pattern in checked if pattern not in allowed]})
        self._store.note_presence(subscriber)

    def _may_subscribe(self, subscriber: str, pattern: str) -> bool:
        if pattern.startswith("$") and subscriber in self._store.operators:
            return True
        return self._subscribe_rules.is_allowed(subscriber, pattern)

    @command("topics", N_("the topics and their subscribers"), "operators", topic=N_("a topic, to see its newest items"))
    async def topics(self, session: Session, topic: str = "") -> str:
        """List topics, subscribers and waiting items, or the newest items of one topic."""
        if topic:
            items = await self._store.load_newest(topic)
            lines = [f"- {item.published_at:%Y-%m-%d %H:%M} {item.publisher} {_shorten(item.payload)}" for item in items]
            letters = [item.dead_letter or {} for item in items]
            lines = [
                f"{line} → {letter['subscriber']}: {letter['error']}" if letter else line
                for line, letter in zip(lines, letters, strict=True)
            ]
            return "\n".join(lines) or translate("There are no items of the topic {topic}.", topic=topic)
        topics, subscribers = await self._store.list_topics(), await self._store.list_subscribers()
        if not topics and not subscribers:
            return translate("There are no topics and no subscribers yet.")
        lines = [
            f"- {summary.topic}: {translate_plural('{number} item', '{number} items', summary.items)}" for summary in topics
        ]
        for subscriber in subscribers:
            waiting = translate_plural("{number} item waits", "{number} items wait", subscriber.waiting)
            error = f" ({subscriber.error})" if subscriber.error else ""
            lines.append(f"- {subscriber.subscriber} ← {', '.join(subscriber.patterns)}: {waiting}{error}")
        return "\n".join(lines)


def _read_rules(name: str, allowed: Mapping[str, list[str]] | None) -> TopicRules:
    try:
        return TopicRules(allowed)
    except ValueError as error:
        raise ConfigError(f"options.{name}", str(error)) from error


def _read_retention(retention: Mapping[str, float | None] | None) -> dict[str, float | None]:
    place = "options.retention"
    given: Mapping[str, Any] = {} if retention is None else retention
    if not isinstance(given, Mapping):
        raise ConfigError(place, "must be an object, such as {items: 1000, days: 30}")
    for key, number in given.items():
        if key not in _RETENTION:
            raise ConfigError(f"{place}.{key}", "unknown key; the keys are items and days")
        kind = "whole number" if key == "items" else "number"
        if number is not None and not (_is_positive(number) and (key != "items" or isinstance(number, int))):
            raise ConfigError(f"{place}.{key}", f"must be a {kind} above 0, or null for no limit")
    return {**_RETENTION, **given}


def _is_positive(number: Any) -> bool:
    """Return True for a number above 0 that is finite."""
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf


def _shorten(payload: Mapping[str, Any]) -> str:
    text = json.dumps(payload, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"
