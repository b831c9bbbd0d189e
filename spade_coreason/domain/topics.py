"""Topics as pure functions: their names, the patterns of subscriptions, and the rules for publishers and subscribers.

A topic consists of segments between slashes: `news/sport`. In a pattern `+` matches one segment and `#` all the rest, as in
MQTT 5.0 (4.7). As there, a wildcard at the beginning does not match topics that begin with `$`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from .access import AccessPolicy
from .callers import is_caller, refuse_caller

MAX_TOPIC_CHARACTERS = 512
DEAD_LETTER = "$dead-letter"
"""The first segment of the topics of items that could not be delivered."""

PUBLISH, SUBSCRIBE = "publish", "subscribe"
"""The capabilities that a request to a topic broker may name."""

TOPIC_ITEM = "topic_item"
"""The metadata in which a topic broker describes the item that it delivers."""
PUBLISHER = "publisher"
ROOT_SENDER = "root_sender"
"""The metadata that names the person whom a request goes back to, if that is not its sender; "" if not known."""
ITEM_METADATA = ("topic", PUBLISHER, "published_at", "item_id")
"""The metadata that the platform makes of that description, for an item from the configured broker."""
DEAD_LETTER_METADATA = "dead_letter"
"""The metadata that says of an item in a dead-letter topic why it is there."""

_ONE, _REST = "+", "#"
_TOPIC_NAMESPACE = uuid5(NAMESPACE_URL, "urn:spade-coreason:topic")


def check_topic(topic: object) -> str:
    """Return the name of a topic to publish to. ValueError for anything else."""
    for segment in _check_segments(topic, "topic"):
        if _ONE in segment or _REST in segment:
            raise ValueError(f"{topic!r} is no topic: the wildcards + and # are for subscriptions; name one topic")
    if str(topic).startswith("$"):
        raise ValueError(f"{topic!r} is no topic to publish to: the broker itself uses names that begin with $")
    return str(topic)


def check_pattern(pattern: object) -> str:
    """Return the pattern of a subscription. ValueError for anything else."""
    segments = _check_segments(pattern, "pattern")
    for number, segment in enumerate(segments):
        if len(segment) > 1 and (_ONE in segment or _REST in segment):
            raise ValueError(f"{pattern!r} is no pattern: a wildcard stands for a whole segment, as in news/+ or news/#")
        if segment == _REST and number < len(segments) - 1:
            raise ValueError(f"{pattern!r} is no pattern: # stands for all the rest, so nothing may follow it")
    return str(pattern)


def _check_segments(name: object, noun: str) -> list[str]:
    if not isinstance(name, str):
        raise ValueError(f"a {noun} is a text such as news/sport, not {type(name).__name__}")
    if not name:
        raise ValueError(f"the {noun} is empty; write a name such as news/sport")
    if len(name) > MAX_TOPIC_CHARACTERS:
        raise ValueError(f"the {noun} has {len(name):,} characters (limit: {MAX_TOPIC_CHARACTERS})")
    if not name.isprintable():
        raise ValueError(f"{name!r} is no {noun}: it has a character that cannot be shown")
    segments = name.split("/")
    if "" in segments:
        raise ValueError(f"{name!r} is no {noun}: a segment is empty; remove the extra slash")
    return segments


def matches(pattern: str, topic: str) -> bool:
    """Return True if a pattern matches a topic. `news/#` matches `news` too."""
    return covers(pattern, topic)


def covers(pattern: str, other: str) -> bool:
    """Return True if a pattern matches every topic that the pattern `other` matches."""
    if other.startswith("$") and pattern[0] in (_ONE, _REST):
        return False
    segments, other_segments = pattern.split("/"), other.split("/")
    for number, segment in enumerate(segments):
        if segment == _REST:
            return True
        if number == len(other_segments):
            return False
        other_segment = other_segments[number]
        if other_segment == _REST or segment not in (_ONE, other_segment):
            return False
    return len(segments) == len(other_segments)


class TopicRules:
    """The rules for who may publish to topics, or subscribe to them.

    `allowed` has lists of bare JIDs, domains and "*" by pattern. A sender needs one pattern that covers the topics and admits
    the sender. Without rules everybody is admitted. ValueError for a wrong pattern or list.
    """

    def __init__(self, allowed: Mapping[str, Iterable[str]] | None = None) -> None:
        if allowed is not None and not isinstance(allowed, Mapping):
            raise ValueError('write patterns with lists of JIDs, domains or "*", such as {"news/#": ["press@example.org"]}')
        self._policies = [
            (check_pattern(pattern), AccessPolicy("", _check_list(pattern, senders)))
            for pattern, senders in ({"#": ["*"]} if allowed is None else allowed).items()
        ]

    def is_allowed(self, jid: str, pattern: str) -> bool:
        """Return True if a sender may use all topics that a pattern, or one topic, matches. A caller of a door never may."""
        return not is_caller(jid) and any(covers(own, pattern) and policy.is_allowed(jid) for own, policy in self._policies)


def _check_list(pattern: str, senders: object) -> list[str]:
    if not isinstance(senders, list | tuple) or not all(isinstance(sender, str) and sender for sender in senders):
        raise ValueError(f'{pattern}: write a list of JIDs, domains or "*", such as ["press@example.org"]')
    return [refuse_caller(sender.lower()) for sender in senders]


def dead_letter_topic(topic: str) -> str:
    """Return the topic of the items of `topic` that could not be delivered."""
    return f"{DEAD_LETTER}/{topic}"


# Ids, each derived, so that what is repeated is recognised.


def derive_item_id(publisher: str, request_id: UUID) -> str:
    """Derive the id of an item from its publisher (a bare JID) and the id of the request that published it."""
    return str(uuid5(_TOPIC_NAMESPACE, f"item\0{publisher}\0{request_id}"))


def derive_dead_letter_id(item_id: str, subscriber: str) -> str:
    """Derive the id of the dead letter about an item that a subscriber (a bare JID) did not take."""
    return str(uuid5(_TOPIC_NAMESPACE, f"dead letter\0{item_id}\0{subscriber}"))


def derive_delivery_id(item_id: str, subscriber: str, failures: int) -> UUID:
    """Derive the id of the request that delivers an item.

    It is the same until the subscriber has answered, so that a repeated delivery runs once. After a failure it is another one,
    because a request that has failed is not run again.
    """
    return uuid5(_TOPIC_NAMESPACE, f"delivery\0{item_id}\0{subscriber}\0{failures}")


def derive_topic_session(topic: str) -> UUID:
    """Derive the session of all requests about a topic, so that each agent has one conversation about it with the broker."""
    return uuid5(_TOPIC_NAMESPACE, f"session\0{topic}")


def read_item_metadata(description: object) -> dict[str, Any] | None:
    """Return the metadata of a delivered item from its description; None if it is none."""
    if not isinstance(description, Mapping) or not all(isinstance(description.get(name), str) for name in ITEM_METADATA):
        return None
    metadata: dict[str, Any] = {name: description[name] for name in ITEM_METADATA}
    if is_caller(metadata[PUBLISHER]):
        metadata[PUBLISHER] = ""  # a broker could name any caller
    if isinstance(root := description.get(ROOT_SENDER), str):
        metadata[ROOT_SENDER] = root if "@" in root and not is_caller(root) else ""
    if isinstance(dead_letter := description.get(DEAD_LETTER_METADATA), Mapping):
        metadata[DEAD_LETTER_METADATA] = dict(dead_letter)
    return metadata
