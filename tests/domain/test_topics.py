"""Topics: names, patterns, rules and derived ids."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from spade_coreason.domain.topics import (
    TopicRules,
    check_pattern,
    check_topic,
    covers,
    derive_delivery_id,
    derive_item_id,
    matches,
    read_item_metadata,
)


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("news/sport", "news/sport", True),
        ("news/sport", "news", False),
        ("news/sport", "news/sport/chess", False),
        ("news/sport", "News/sport", False),
        ("news/+", "news/sport", True),
        ("news/+", "news", False),
        ("news/+", "news/sport/chess", False),
        ("+/sport", "news/sport", True),
        ("+/+", "news/sport", True),
        ("+", "news", True),
        ("+", "news/sport", False),
        ("news/#", "news", True),
        ("news/#", "news/sport", True),
        ("news/#", "news/sport/chess", True),
        ("news/#", "newspaper", False),
        ("news/+/chess", "news/sport/chess", True),
        ("news/+/#", "news", False),
        ("#", "news/sport", True),
        ("#", "$dead-letter/news", False),
        ("+/news", "$dead-letter/news", False),
        ("$dead-letter/#", "$dead-letter/news", True),
        ("$dead-letter/+/sport", "$dead-letter/news/sport", True),
    ],
)
def test_a_pattern_matches_topics_as_in_mqtt(pattern: str, topic: str, expected: bool) -> None:
    assert matches(check_pattern(pattern), topic) is expected


@pytest.mark.parametrize(
    ("pattern", "other", "expected"),
    [
        ("#", "news/#", True),
        ("#", "+/sport", True),
        ("#", "#", True),
        ("news/#", "#", False),
        ("news/#", "news/+/chess", True),
        ("news/+", "news/#", False),
        ("news/+", "news/+", True),
        ("news/sport", "news/+", False),
        ("+/sport", "+/+", False),
        ("#", "$dead-letter/#", False),
    ],
)
def test_a_pattern_covers_another_if_it_matches_all_its_topics(pattern: str, other: str, expected: bool) -> None:
    assert covers(pattern, other) is expected


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the topic is empty"),
        ("/news", "a segment is empty"),
        ("news//sport", "a segment is empty"),
        ("news/#", "the wildcards + and # are for subscriptions"),
        ("news/a+b", "the wildcards + and # are for subscriptions"),
        ("$dead-letter/news", "the broker itself uses names that begin with"),
        ("news\nsport", "a character that cannot be shown"),
        ("half a pair \ud83d", "a character that cannot be shown"),
        ("x" * 513, "has 513 characters"),
        (7, "a topic is a text such as news/sport, not int"),
    ],
)
def test_a_wrong_topic_is_an_error_that_says_why(name: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("+", r"\+")):
        check_topic(name)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("news/#/chess", "nothing may follow it"),
        ("news/a#", "a wildcard stands for a whole segment"),
        ("+news", "a wildcard stands for a whole segment"),
        ("news/", "a segment is empty"),
        (None, "a pattern is a text such as news/sport, not NoneType"),
    ],
)
def test_a_wrong_pattern_is_an_error_that_says_why(pattern: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_pattern(pattern)


def test_a_topic_may_have_any_letters_and_spaces() -> None:
    assert check_topic("Nachrichten/Süd Amerika/日本") == "Nachrichten/Süd Amerika/日本"


def test_rules_admit_by_jid_domain_and_star() -> None:
    rules = TopicRules({"news/#": ["press@example.org"], "news/local": ["example.com"], "chat/+": ["*"]})
    assert rules.is_allowed("press@example.org/desk", "news/sport")
    assert rules.is_allowed("bob@example.com", "news/local")
    assert not rules.is_allowed("bob@example.com", "news/sport")
    assert rules.is_allowed("anybody@elsewhere", "chat/x")
    assert not rules.is_allowed("anybody@elsewhere", "chat/x/y")
    assert not rules.is_allowed("press@example.org", "#")
    assert rules.is_allowed("press@example.org", "news/+")


def test_without_rules_everybody_is_admitted_but_not_to_dead_letters() -> None:
    assert TopicRules().is_allowed("a@b", "#")
    assert not TopicRules().is_allowed("a@b", "$dead-letter/#")
    assert not TopicRules({}).is_allowed("a@b", "news")


@pytest.mark.parametrize("allowed", [["news/#"], {"news/#": "press@example.org"}, {"news/#": [7]}, {"news/#/x": []}])
def test_wrong_rules_are_an_error(allowed: Any) -> None:
    with pytest.raises(ValueError, match=r"write|nothing may follow"):
        TopicRules(allowed)


def test_ids_are_the_same_for_what_is_repeated_and_differ_otherwise() -> None:
    request = UUID(int=1)
    item = derive_item_id("press@localhost", request)
    assert item == derive_item_id("press@localhost", request)
    assert item != derive_item_id("other@localhost", request)
    assert derive_delivery_id(item, "a@b", 0) == derive_delivery_id(item, "a@b", 0)
    assert len({derive_delivery_id(item, who, failures) for who in ("a@b", "c@d") for failures in (0, 1)}) == 4


@pytest.mark.parametrize("description", [None, "news", {"topic": "news"}, {"topic": 1, "publisher": "", "published_at": ""}])
def test_what_does_not_describe_an_item_is_none(description: object) -> None:
    assert read_item_metadata(description) is None
