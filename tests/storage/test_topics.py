"""Topics in the database: items with their deliveries, retention, dead letters, backup and deletion."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from spade_coreason.domain.topics import derive_dead_letter_id
from spade_coreason.memory import erase_person, export_person
from spade_coreason.storage import (
    DELIVERY,
    TaskQueue,
    TopicItem,
    TopicRepository,
    back_up,
    make_dead_letter,
    open_database,
    restore,
)
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.repository import list_stored_agents
from tests.support.databases import SQLITE, count_commits, execute, open_without_sync
from tests.support.records import AGENT, ALICE, BOB, NOW, OTHER_AGENT, open_repository

TABLES = ("topic_subscriptions", "topic_items", "topic_deliveries")


def read_rows(url: str, table: str) -> list[dict[str, Any]]:
    return execute(url, f"SELECT * FROM {table} ORDER BY 1, 2, 3")


def make_item(number: int = 1, topic: str = "news/sport", **fields: Any) -> TopicItem:
    return TopicItem(f"item {number}", topic, ALICE, NOW, {"number": number, "odd": "\x00 \ud83d"}, **fields)


async def waiting(topics: TopicRepository, subscriber: str) -> list[str]:
    return [delivery.item.item_id for delivery in await topics.load_deliveries(subscriber, 100)]


async def test_an_item_has_a_delivery_for_each_subscriber_whose_pattern_matches(database: Database) -> None:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["news/#", "news/sport"])
    await topics.subscribe(ALICE, ["news/+"])
    await topics.subscribe("other@localhost", ["weather"])
    await TopicRepository(database, OTHER_AGENT).subscribe("foreign@localhost", ["#"])
    assert (await topics.publish(make_item(hops=3))).subscribers == [ALICE, BOB]
    [delivery] = await topics.load_deliveries(BOB, 10)
    assert delivery.item == make_item(hops=3)
    assert delivery[1:3] == (BOB, 0)
    assert sorted(task.owner for task in await TaskQueue(database, AGENT, DELIVERY).load()) == [ALICE, BOB]
    assert await topics.load_newest("news/sport", 5) == [make_item(hops=3)]


async def test_an_item_that_is_published_again_is_stored_once(database: Database, database_url: str) -> None:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["#"])
    first, second = topics.publish(make_item()), topics.publish(make_item())  # in one transaction too
    assert [(await commit).subscribers for commit in (first, second)] == [[BOB], []]
    assert (await topics.publish(make_item())).subscribers == []
    assert [len(read_rows(database_url, table)) for table in TABLES] == [1, 1, 1]


async def test_an_item_and_its_deliveries_are_one_transaction(tmp_path: Path) -> None:
    url = f"{SQLITE}{tmp_path}/topics.db"
    database = await open_without_sync(url)
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["#"])
    before = count_commits(url)
    await topics.publish(make_item())
    assert count_commits(url) == before + 1
    await database.close()


async def test_deliveries_come_in_the_order_of_publication_until_they_are_completed(database: Database) -> None:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["#"])
    for number in range(5):
        await topics.publish(make_item(number, "odd" if number % 2 else "even"))
    assert await waiting(topics, BOB) == [f"item {number}" for number in range(5)]
    first, *_ = await topics.load_deliveries(BOB, 10, f"{BOB} even")
    await topics.complete(first)
    await topics.complete(first)
    assert [delivery.item.item_id for delivery in await topics.load_deliveries(BOB, 1, f"{BOB} even")] == ["item 2"]
    [one, *_] = await topics.load_deliveries(BOB, 1)
    await topics.record_failure(one, 3, "x" * 1000)
    [again] = await topics.load_deliveries(BOB, 1)
    assert again == one._replace(failures=3)
    [summary] = await topics.list_subscribers()
    assert (summary.subscriber, summary.patterns, summary.waiting, summary.oldest_at) == (BOB, ("#",), 4, NOW)
    assert summary.error == "x" * 500
    assert [(topic.topic, topic.items) for topic in await topics.list_topics()] == [("even", 3), ("odd", 2)]


async def test_patterns_that_are_not_named_again_are_removed_with_what_waits_for_them(database: Database) -> None:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["news/#", "weather"])
    await topics.publish(make_item(1, "news/sport"))
    await topics.publish(make_item(2, "news/local"))
    await topics.publish(make_item(3, "weather"))
    await topics.subscribe(BOB, ["news/sport", "weather"])
    assert (await topics.load_of_person(BOB)).patterns == ("news/sport", "weather")
    assert await waiting(topics, BOB) == ["item 1", "item 3"]
    await topics.subscribe(BOB, [])
    assert await topics.list_subscribers() == []


def refuse_weather_to_bob(subscriber: str, pattern: str) -> str | None:
    return "it rains" if (subscriber, pattern) == (BOB, "weather/#") else None


async def test_a_publication_removes_what_is_refused_with_what_waits_for_it(tmp_path: Path) -> None:
    url = f"{SQLITE}{tmp_path}/topics.db"
    database = await open_without_sync(url)
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["weather/#", "weather/sun", "news"])
    await topics.subscribe(ALICE, ["weather/#"])
    for number, topic in enumerate(["weather/rain", "weather/sun", "news"]):
        await topics.publish(make_item(number, topic))
    before = count_commits(url)
    publication = await topics.publish(make_item(3, "weather/rain"), refuse_weather_to_bob)
    assert count_commits(url) == before + 1
    assert publication == ([ALICE], [(BOB, ("weather/#",), "it rains", 1)])
    assert (await topics.load_of_person(BOB)).patterns == ("news", "weather/sun")
    assert await waiting(topics, BOB) == ["item 1", "item 2"]
    assert await waiting(topics, ALICE) == ["item 0", "item 1", "item 3"]
    await database.close()


async def test_what_is_refused_is_removed_in_one_transaction_for_each_subscriber(database: Database) -> None:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["weather/#", "news"])
    await topics.subscribe(ALICE, ["weather/#"])
    await TopicRepository(database, OTHER_AGENT).subscribe(BOB, ["weather/#"])
    await topics.publish(make_item(1, "weather/rain"))
    assert sorted(await topics.load_subscriptions()) == sorted([(ALICE, "weather/#"), (BOB, "news"), (BOB, "weather/#")])
    removed = [(BOB, ("weather/#",), "it rains", 1)]
    assert await topics.remove_refused([ALICE, BOB], refuse_weather_to_bob) == removed
    assert await topics.remove_refused([ALICE, BOB], refuse_weather_to_bob) == []
    assert await waiting(topics, ALICE) == ["item 1"]
    assert await TopicRepository(database, OTHER_AGENT).load_subscriptions() == [(BOB, "weather/#")]


async def test_a_dead_letter_has_the_payload_and_the_reason(database: Database) -> None:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["news/#"])
    await topics.subscribe(ALICE, ["$dead-letter/#"])
    await topics.publish(make_item())
    [delivery] = await topics.load_deliveries(BOB, 1)
    later = NOW + timedelta(hours=1)
    letter = make_dead_letter(delivery.item, BOB, "it broke", later)
    assert (await topics.move_to_dead_letters(delivery, letter)).subscribers == [ALICE]
    assert (await topics.move_to_dead_letters(delivery, letter)).subscribers == []
    assert await waiting(topics, BOB) == []
    [stored] = await topics.load_deliveries(ALICE, 1)
    assert stored.item == letter
    assert letter == make_item()._replace(
        item_id=derive_dead_letter_id("item 1", BOB),
        topic="$dead-letter/news/sport",
        published_at=later,
        dead_letter={"subscriber": BOB, "error": "it broke", "item_id": "item 1", "topic": "news/sport"},
    )
    assert (await topics.move_to_dead_letters(stored, letter)).subscribers == []
    assert await waiting(topics, ALICE) == []
    assert [summary.topic for summary in await topics.list_topics()] == ["$dead-letter/news/sport", "news/sport"]


async def test_retention_deletes_old_items_but_none_that_waits(database: Database) -> None:
    topics = TopicRepository(database, AGENT)
    for number in range(6):
        await topics.publish(make_item(number)._replace(published_at=NOW + timedelta(days=number)))
    await topics.subscribe(BOB, ["#"])
    await topics.publish(make_item(6, "other")._replace(published_at=NOW))
    await TopicRepository(database, OTHER_AGENT).publish(make_item(7))
    assert await topics.delete_old_items(NOW + timedelta(days=2), None) == 2
    assert await topics.delete_old_items(None, 3) == 1
    assert await topics.delete_old_items(NOW + timedelta(days=2), 3) == 0
    assert [item.item_id for item in await topics.load_newest("news/sport", 10)] == ["item 3", "item 4", "item 5"]
    assert await waiting(topics, BOB) == ["item 6"]
    [expired] = await topics.load_older(NOW + timedelta(days=2), 10)
    assert expired.item.item_id == "item 6"
    assert len(await TopicRepository(database, OTHER_AGENT).load_newest("news/sport", 10)) == 1


async def test_forgetting_deletes_subscriptions_and_the_name_of_the_publisher(database: Database, database_url: str) -> None:
    repository = await open_repository(database, AGENT)
    topics = repository.topics
    await topics.subscribe(ALICE, ["#"])
    await topics.subscribe(BOB, ["#"])
    await topics.publish(make_item())
    await topics.publish(make_item(2)._replace(publisher=BOB))
    [delivery, _] = await topics.load_deliveries(ALICE, 10)
    await topics.move_to_dead_letters(delivery, make_dead_letter(delivery.item, ALICE, f"{ALICE} broke", NOW))
    assert await repository.list_people() in ([ALICE, BOB], [BOB, ALICE])
    assert await list_stored_agents(database) == [AGENT]
    exported = (await export_person(repository, None, ALICE))["topics"]
    assert exported["subscriptions"] == ["#"]
    assert [item["topic"] for item in exported["published"]] == ["news/sport", "$dead-letter/news/sport"]
    assert exported["published"][0]["payload"]["number"] == 1
    report = await erase_person(repository, None, ALICE)
    assert (report.subscriptions, report.items) == (1, 2)
    assert ALICE not in str([read_rows(database_url, table) for table in TABLES])
    assert await waiting(topics, BOB) == ["item 1", "item 2"]
    assert (await export_person(repository, None, ALICE))["topics"] == {"subscriptions": [], "published": []}
    assert (await erase_person(repository, None, ALICE)).is_empty


async def test_a_backup_has_the_topics(database: Database, database_url: str, tmp_path: Path) -> None:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["#"])
    await topics.publish(make_item(dead_letter={"subscriber": BOB, "error": "e"}))
    await back_up(database, tmp_path / "memory", tmp_path / "backup.tar", "test", lambda done, total: None)
    copy = f"{SQLITE}{tmp_path}/copy.db"
    restored = await open_database(copy, "off")
    await restore(restored, tmp_path / "restored", tmp_path / "backup.tar", lambda done, total: None)
    await restored.close()
    for table in TABLES:
        assert read_rows(copy, table) == read_rows(database_url, table)
    reopened = await open_database(copy, "off")
    await TopicRepository(reopened, AGENT).publish(make_item(2))  # its row id is free
    assert await waiting(TopicRepository(reopened, AGENT), BOB) == ["item 1", "item 2"]
    await reopened.close()
