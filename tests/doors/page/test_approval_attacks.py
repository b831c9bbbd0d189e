"""Approvals in the page: a fresh session of somebody who was asked decides, once. On the embedded server nothing else does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from spade_coreason.domain.forms.adhoc import CommandCall
from spade_coreason.runtime.commands.dialogs import AdHocSessions
from spade_coreason.storage.schema import logins
from spade_coreason.testing import FakeModel, stream, tool_call
from tests.support.approvals import APPROVER, POLICY, Desk, run_desk
from tests.support.page import ADA, BOB, CAROL, DAVE, DESK, PageDesk, RunningPage, Visitor, decide, wish
from tests.support.wait import eventually

ASKED_NOTHING = "I have asked you nothing with this code."


async def ask_to_pay(asker: Visitor, approver: Visitor, what: str = "rent") -> str:
    """Ask for a payment. Return the code that the approver sees."""
    assert (await asker.ask(wish("pay", text=what))).status_code == 200
    async with approver.feed() as feed:
        while what not in (question := await feed.find_question())["call"]:
            pass
    assert question["kind"] == "approval"
    return str(question["code"])


async def make_older(page: RunningPage, person: str, **by: float) -> None:
    """Let the sessions of a person have begun earlier."""
    assert page.platform.database is not None
    earlier = logins.c.created_at - int(timedelta(**by) / timedelta(microseconds=1))
    change = update(logins).where(logins.c.person == person).values(created_at=earlier)
    await page.platform.database.write(lambda connection: connection.execute(change))


async def test_an_old_session_decides_nothing_and_a_fresh_one_does(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path, {"page": {"approvals_h": 0.5}}) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        code = await ask_to_pay(ada, carol)
        await make_older(page, CAROL, minutes=31)
        for decision in ("approve", "deny"):
            status, text = await decide(carol, code, decision)
            assert (status, "too old" in text) == (403, True)
        assert (await carol.post("/chat/me")).status_code == 200
        # As an answer of a text it does not count either, nor as a command.
        assert ASKED_NOTHING in (await carol.post("/chat/answer", agent=DESK, code=code, text="yes")).text
        for text in (f"/approve {code}", f"approve {code}", f"/deny {code}", f"/answer {code} yes"):
            assert (await carol.ask(text)).status_code == 200
        fresh = await page.log_in(CAROL)
        assert await decide(fresh, code) == (200, "")
        await eventually(lambda: PageDesk.paid == ["rent"])


async def test_only_those_who_were_asked_decide(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, bob, carol, dave = [await page.log_in(person) for person in (ADA, BOB, CAROL, DAVE)]
        code = await ask_to_pay(ada, carol)
        for visitor in (ada, bob):
            for decision in ("approve", "deny"):
                for given in (code, code.lower(), f" {code} "):
                    status, text = await decide(visitor, given, decision)
                    assert (status, ASKED_NOTHING in text) == (200, True)
        own = await ask_to_pay(carol, dave, "a bonus for Carol")
        async with carol.feed() as feed:
            seen = (await feed.find_question())["code"]
        assert (seen, own != code) == (code, True)
        assert ASKED_NOTHING in (await decide(carol, own))[1]
        assert PageDesk.paid == []
        assert await decide(dave, own, "deny", "no") == (200, "")
        assert await decide(carol, code) == (200, "")
        await eventually(lambda: PageDesk.paid == ["rent"])


async def test_a_decision_counts_once(tmp_path: Path) -> None:
    """Also if it is sent twice, or by two people at once, and both ways."""
    async with RunningPage.open(tmp_path) as page:
        ada, carol, dave = [await page.log_in(person) for person in (ADA, CAROL, DAVE)]
        code = await ask_to_pay(ada, carol)
        found = await asyncio.gather(
            *(decide(visitor, code, decision) for visitor in (carol, dave) * 3 for decision in ("approve", "deny"))
        )
        assert [status for status, _ in found] == [200] * 12
        assert [text for _, text in found].count("") == 1
        decided = next(number for number, (_, text) in enumerate(found) if not text)
        blocks = (await ada.turns(1))[0]["parts"][0]["blocks"]
        assert blocks[-1][2][0].startswith("paid" if decided % 2 == 0 else "not paid")
        assert PageDesk.paid == (["rent"] if decided % 2 == 0 else [])
        for _ in range(2):
            assert (await decide(carol, code))[1] in (
                "You have answered this already.",
                f"{DAVE} was first. Your answer changes nothing.",
            )


async def test_a_code_that_was_reassigned_is_worth_nothing(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        old = await ask_to_pay(ada, carol)
        [approval] = await page.call("approvals.list")
        await page.call("approvals.reassign", id=approval.id)
        new = old
        while new == old:
            with suppress(TimeoutError):  # one that is opened between the two codes shows none
                async with asyncio.timeout(3), carol.feed() as feed:
                    new = (await feed.find_question())["code"]
        for decision in ("approve", "deny"):
            assert ASKED_NOTHING in (await decide(carol, old, decision))[1]
        assert PageDesk.paid == []
        assert await decide(carol, new) == (200, "")
        await eventually(lambda: PageDesk.paid == ["rent"])


async def test_an_open_feed_shows_the_new_code_of_an_approval(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        assert (await ada.ask(wish("pay", text="rent"))).status_code == 200
        async with carol.feed() as feed:
            old = (await feed.find_question())["code"]
            [approval] = await page.call("approvals.list")
            await page.call("approvals.reassign", id=approval.id)
            async with asyncio.timeout(6):
                while (await feed.find_question())["code"] == old:
                    pass


async def test_a_text_decides_nothing_on_the_embedded_server(tmp_path: Path) -> None:
    """Neither a command in the page, nor one that comes over XMPP, where anybody may forge the sender."""
    async with RunningPage.open(tmp_path) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        code = await ask_to_pay(ada, carol)
        texts = (
            f"/approve {code}",
            f"approve {code}",
            f"/deny {code}",
            f"deny {code}",
            "approve",
            "yes",
            f"!approve {code}",
            code,
        )
        for text in texts:
            assert (await carol.ask(text, thread="words")).status_code == 200
        [approval] = await page.call("approvals.list")
        assert approval.state == "open"
        assert PageDesk.paid == []


async def test_a_wrong_decision_is_refused(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        code = await ask_to_pay(ada, carol)
        for decision in ("APPROVE", "approved", "yes", "approve\x00", "true"):
            assert (await decide(carol, code, decision))[0] == 400
        for given in ("", "x" * 40, "ABCDEF", "%", "*", f"{code}' OR '1'='1"):
            status, text = await decide(carol, given)
            assert (status, ASKED_NOTHING in text) == (200, True), given
        assert (await decide(carol, "x" * 41))[0] == 400
        for length in (10_000, 1_000_000):
            assert (await decide(carol, code, text="x" * length))[0] in (400, 403, 413)
        assert (await decide(carol, code, "approve", agent="private@localhost"))[0] == 404
        [approval] = await page.call("approvals.list")
        assert (approval.state, PageDesk.paid) == ("open", [])


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_decision_before_a_restart_counts_and_is_not_decided_again(decision: str, tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        code = await ask_to_pay(ada, carol)
        assert await decide(carol, code, decision) == (200, "")
    async with RunningPage.open(tmp_path) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        assert len(await ada.turns(1)) == 1
        assert (await decide(carol, code, "approve"))[1] == "You have answered this already."
        assert PageDesk.paid in ([], ["rent"])


async def test_an_answer_that_waits_since_before_a_restart_takes_nothing_from_the_page(tmp_path: Path) -> None:
    """The page has shown what was said, which is not told again before the decision. A state of it once cleared that."""
    async with RunningPage.open(tmp_path) as page:
        await ask_to_pay(await page.log_in(ADA), await page.log_in(CAROL))
    async with RunningPage.open(tmp_path) as page:
        ada, carol = await page.log_in(ADA), await page.log_in(CAROL)
        async with ada.feed() as feed:
            await feed.find("answer", state="parked")
            assert all(state["keeps"] for state in feed.states if state.get("is_new"))
            async with carol.feed() as questions:
                code = (await questions.find_question())["code"]
            assert await decide(carol, code) == (200, "")
            await feed.find_turns(1)


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_a_sender_over_xmpp_decides_nothing_where_anybody_may_forge_it(verb: str) -> None:
    """Neither by a command in any form, nor by a text, nor in the menu (XEP-0050)."""
    desk, page = Desk(), "http://127.0.0.1:8080"
    policy = replace(POLICY, approvals=replace(POLICY.approvals, page=page))
    async with run_desk(
        FakeModel([stream(calls=[tool_call("refund", order="R7", amount=30)]), *["Done."] * 3]), desk, policy=policy
    ) as t:
        await t.say("refund R7")
        asked = (await t.message(APPROVER)).text or ""
        assert page in asked
        [(agent, runner)] = t.runners.items()
        repository = runner.repository
        [stored] = await repository.questions.load_asked(APPROVER)
        for text in (f"/{verb} {stored.code}", f"{verb} {stored.code}", f"!{verb} {stored.code}", verb, stored.code, "yes"):
            await t.say(text, user=APPROVER)
        sessions = AdHocSessions(runner.executor, runner.languages)
        for form in (
            {},
            {"code": stored.code},
            {"code": stored.code, "sure": "true"},
            {"code": stored.code, "reason": ""},
        ):
            stage = await sessions.answer(CommandCall(f"{APPROVER}/phone", "1", verb, "", "execute", form or None))
            session = getattr(stage, "session", "")
            await sessions.answer(CommandCall(f"{APPROVER}/phone", "2", verb, session, "complete", form or None))
        await sessions.close()
        [still] = await repository.questions.load_asked(APPROVER)
        assert (still.is_open, desk.calls, agent) == (True, [], t.jid)
