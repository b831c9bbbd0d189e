from changelog import changelog
from release_bot import ReleaseBot, describe_build

from spade_coreason import AgentTester

PEERS = {"changelog": changelog}


async def test_it_asks_the_changelog_for_the_next_release() -> None:
    async with AgentTester(ReleaseBot, peers=PEERS) as t:
        [answer] = await t.say("what is in the next release?")
        assert "1.2" in answer
        assert "Export of a calendar" in answer


async def test_the_checklist_ends_with_the_release_notes_as_a_file() -> None:
    async with AgentTester(ReleaseBot, peers=PEERS) as t:
        assert "- tests: open" in (await t.say("/release 1.2"))[0]
        assert "- tests: done by" in (await t.say("tests done"))[0]
        await t.restart()
        await t.say("documentation done")
        assert (await t.say("announcement done"))[-1] in t.uploaded
        [notes] = t.uploaded.values()
        assert notes.name == "release-1.2.md"
        assert b"Reminders arrive on time" in notes.data


async def test_a_release_needs_a_section_in_the_changelog() -> None:
    async with AgentTester(ReleaseBot, peers=PEERS) as t:
        assert "it has 1.2, 1.1" in (await t.say("/release 9.9"))[0]
        assert "Ask me" in (await t.say("tests done"))[0]


async def test_without_the_changelog_it_says_so() -> None:
    async with AgentTester(ReleaseBot) as t:
        assert "I cannot look up the changes" in (await t.say("what is in the next release?"))[0]


def test_a_workflow_that_is_done_is_a_line() -> None:
    run = {"name": "CI", "conclusion": "failure", "html_url": "https://github.com/octo/hello/actions/runs/1"}
    event = {"action": "completed", "workflow_run": run}
    assert describe_build(event) == "✘ CI: failure https://github.com/octo/hello/actions/runs/1"
    assert describe_build({"action": "requested"}) == ""
