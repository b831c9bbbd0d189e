"""Links and sessions: each works once, ends in time, and leaves no secret anywhere."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from spade_coreason.storage import Database, LoginRepository, WorkerTerms, open_database
from spade_coreason.storage.backup import back_up, restore
from tests.support.clock import Clock
from tests.support.page import ADA, BOB, DESK, RunningPage, Visitor, log_in
from tests.support.records import AGENT, open_repository
from tests.support.servers.postgres import Postgres

HOURS = timedelta(hours=1)


@pytest.fixture
def logins(database: Database) -> LoginRepository:
    """The logins of a database."""
    return LoginRepository(database)


async def test_one_of_many_at_once_gets_the_session_of_a_link(logins: LoginRepository) -> None:
    now = Clock()()
    for _ in range(5):
        link = await logins.create_link(ADA, now)
        sessions = [each for each in await asyncio.gather(*(logins.redeem(link, now) for _ in range(50))) if each]
        assert len(sessions) == 1
        assert (await logins.redeem(link, now), await logins.find_person(link, now)) == (None, None)


@pytest.mark.servers
async def test_one_of_two_workers_gets_the_session_of_a_link(postgres: Postgres) -> None:
    url = postgres.url()
    first, second = [await open_database(url, "off", terms=WorkerTerms(name, 3600)) for name in ("one", "two")]
    try:
        now, workers = Clock()(), (LoginRepository(first), LoginRepository(second))
        for _ in range(20):
            link = await workers[0].create_link(ADA, now)
            found = await asyncio.gather(*(worker.redeem(link, now) for worker in workers for _ in range(5)))
            [session] = [each for each in found if each]
            assert [(await worker.find(session, now)) is not None for worker in workers] == [True, True]
            for worker in workers:
                await worker.end_all(ADA)
            assert [await worker.find(session, now) for worker in workers] == [None, None]
    finally:
        await first.close()
        await second.close()


async def test_links_and_sessions_end_in_time_also_if_the_clock_jumps(logins: LoginRepository) -> None:
    clock = Clock()
    link, late = await logins.create_link(ADA, clock()), await logins.create_link(ADA, clock())
    session = await logins.redeem(link, clock())
    assert session is not None
    clock.advance(seconds=119.9)
    assert await logins.find_person(late, clock()) == ADA
    clock.advance(seconds=0.1)
    assert (await logins.find_person(late, clock()), await logins.redeem(late, clock())) == (None, None)
    clock.advance(hours=11.96)
    assert await logins.find(session, clock()) is not None
    clock.advance(hours=0.01)
    assert await logins.find(session, clock()) is None
    await logins.create_link(BOB, clock())  # what is too old is deleted, so that it does not come back with the clock
    clock.advance(hours=-6)
    assert (await logins.find(session, clock()), await logins.find_person(late, clock())) == (None, None)


async def test_a_session_is_no_link_and_a_link_is_no_session(logins: LoginRepository) -> None:
    now = Clock()()
    link = await logins.create_link(ADA, now)
    assert await logins.find(link, now) is None
    session = await logins.redeem(await logins.create_link(ADA, now), now)
    assert session is not None
    assert (await logins.redeem(session, now), await logins.find_person(session, now)) == (None, None)
    for part in (session[:43], session[43:], session[::-1], session + "A", session.lower(), "", " " + session):
        assert await logins.find(part, now) is None


async def test_sessions_of_a_person_are_bounded_and_those_of_others_stay(logins: LoginRepository) -> None:
    now = Clock()()
    session = await logins.redeem(await logins.create_link(BOB, now), now)
    links = [await logins.create_link(ADA, now) for _ in range(60)]
    alive = [link for link in links if await logins.find_person(link, now)]
    assert alive == links[-50:]
    assert session is not None
    assert await logins.find(session, now) is not None
    assert await logins.end_all(None) == 51


async def test_a_link_is_used_once_and_not_by_a_preview(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        link, stranger = await page.make_link(ADA), page.stranger()
        async with stranger.client() as http:
            for path in ("/", "/login", f"/login?{link}", f"/login#{link}", "/static/chat.js"):
                assert (await http.get(path)).status_code == 200
                assert (await http.head(path)).status_code == 200
        for _ in range(3):
            assert (await stranger.post("/login/name", link=link)).json() == {"account": ADA}
        replies = await asyncio.gather(*(stranger.post("/login", link=link) for _ in range(20)))
        assert sorted(reply.status_code for reply in replies) == [200] + [403] * 19
        assert sum("set-cookie" in reply.headers for reply in replies) == 1
        assert (await stranger.post("/login/name", link=link)).status_code == 403


async def test_guesses_are_counted_and_do_not_keep_out_who_has_a_link(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        stranger = page.stranger()
        found = [
            (await stranger.post(path, link="x" * 43)).status_code for path in ("/login", "/login/name") for _ in range(20)
        ]
        assert found[0] == 403
        assert found[-1] == 429
        assert (await (await log_in(page.url, await page.make_link(ADA))).post("/chat/me")).status_code == 200


async def test_a_session_is_new_whatever_the_browser_had_before(tmp_path: Path) -> None:
    """Session fixation: the cookie of an attacker is not the one of the session after the login."""
    async with RunningPage.open(tmp_path) as page:
        mallory = await page.log_in(BOB)
        victim = Visitor(page.url, mallory.cookie, mallory.key)
        reply = await victim.post("/login", link=await page.make_link(ADA))
        [(name, cookie)] = reply.cookies.items()
        assert cookie != mallory.cookie[1]
        assert reply.json()["key"] != mallory.key
        ada = Visitor(page.url, (name, cookie), reply.json()["key"])
        assert (await ada.post("/chat/me")).json()["account"] == ADA
        assert (await mallory.post("/chat/me")).json()["account"] == BOB
        for cookie, key in ((mallory.cookie, ada.key), (ada.cookie, mallory.key)):
            assert (await Visitor(page.url, cookie, key).post("/chat/me")).status_code == 401


@pytest.mark.parametrize("how", ["logout", "revoke", "revoke all", "people delete", "forget everywhere"])
async def test_a_session_ends_at_once_and_its_feed_within_seconds(how: str, tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        link = await page.make_link(ADA)
        async with ada.feed() as feed:
            await feed.find("agents")
            if how == "logout":
                assert (await ada.post("/logout")).status_code == 200
            elif how == "people delete":
                await page.call("people.delete", person=ADA)
            elif how == "forget everywhere":
                assert (await ada.ask("/forget everywhere yes")).status_code == 200
            else:
                assert await page.call("logins.revoke", person=ADA if how == "revoke" else "") in (2, 3)
            await feed.read_end()
        for route in ("/chat/me", "/chat/feed", "/chat/ask", "/logout"):
            assert (await ada.post(route, agent=DESK, text="after")).status_code == 401
        assert (await bob.post("/chat/me")).status_code == (401 if how == "revoke all" else 200)
        assert (await page.stranger().post("/login", link=link)).status_code == (200 if how == "logout" else 403)


async def test_no_secret_is_stored_or_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the database, nor the trail, an export, the file of the run, or a log at the level debug."""
    caplog.set_level(logging.DEBUG)
    async with RunningPage.open(tmp_path) as page:
        url = str(await page.call("logins.create", person=ADA))
        link = url.partition("#")[2]
        await page.stranger().post("/login", link="wrong" * 8)
        ada = await log_in(page.url, link)
        await ada.ask("hello")
        await ada.turns(1)
        unused = await page.make_link(ADA)
        exported = str(await page.call("people.export", person=ADA))
        audited = str(await page.call("audit.list"))
        assert page.platform.database is not None
        await page.platform.database.write(lambda connection: None)
        stored = b"".join(file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file())
    # All but the client of this test.
    logged = [f"{each.name} {each.getMessage()} {each.exc_info}" for each in caplog.records if each.name[:4] != "http"]
    assert len(link) == 43
    assert logged
    for secret in (link, unused, ada.key, ada.cookie[1]):
        assert not [each for each in logged if secret in each]
        assert secret not in exported + audited
        assert secret.encode() not in stored
    assert "logins.create" in audited


async def test_a_restored_backup_has_no_session(tmp_path: Path) -> None:
    now, url = Clock()(), f"sqlite+aiosqlite:///{tmp_path}/platform.db"
    database = await open_database(url, "off")
    await open_repository(database, AGENT)
    session = await LoginRepository(database).redeem(await LoginRepository(database).create_link(ADA, now), now)
    link = await LoginRepository(database).create_link(ADA, now)
    assert session is not None
    await back_up(database, tmp_path / "memory", tmp_path / "b.tar", "1", lambda done, total: None)
    await database.close()
    restored = await open_database(f"sqlite+aiosqlite:///{tmp_path}/restored.db", "off")
    await restore(restored, tmp_path / "restored", tmp_path / "b.tar", lambda done, total: None)
    logins = LoginRepository(restored)
    assert (await logins.find(session, now), await logins.find_person(link, now)) == (None, None)
    await restored.close()
