from support_desk import SupportDesk
from with_model import Writer, WritingDesk

from spade_coreason import AgentTester
from spade_coreason.testing import FakeModel, error

STAFF = {"staff": ["staff@localhost"]}


async def test_it_answers_from_the_handbook_and_names_the_page() -> None:
    async with AgentTester(SupportDesk) as t:
        answer, source = await t.say("Can I return my new bicycle?")
        assert "within 30 days" in answer
        assert source == "Source: returns.md"


async def test_it_asks_for_the_bicycle_once_and_remembers_it() -> None:
    async with AgentTester(SupportDesk) as t:
        [question] = await t.say("Which tyre pressure?")
        assert question.startswith("Which bicycle do you have?")
        assert "3 bar" in (await t.say("Cargo"))[0]
        await t.restart()
        assert "3 bar" in (await t.say("Which tyre pressure?", thread="another"))[0]
        assert "4 bar" in (await t.say("Which tyre pressure has a City?"))[0]


async def test_an_answer_of_the_staff_is_for_all_customers() -> None:
    async with AgentTester(SupportDesk, options=STAFF) as t:
        assert "passed your question on" in (await t.say("Do you repair frames?", user="ada@localhost"))[0]
        assert await t.say("/open", user="staff@localhost") == ["1. ada: Do you repair frames?"]
        await t.say('/answer 1 "Frame repair" We repair frames of steel.', user="staff@localhost")
        answer, source = await t.say("Do you repair frames?", user="bob@localhost")
        assert "frames of steel" in answer
        assert source == "Source: Frame repair"
        assert await t.say("/open", user="staff@localhost") == ["No question is open."]


async def test_customers_do_not_see_what_others_asked() -> None:
    async with AgentTester(SupportDesk, options=STAFF) as t:
        assert await t.say("/open") == ["This is for the staff."]


async def test_the_model_gets_the_page_of_the_handbook() -> None:
    model = FakeModel(["Yes, within 30 days."])
    async with AgentTester(WritingDesk, peers={"writer": Writer}, model=model) as t:
        assert await t.say("Can I return my bicycle?") == ["Yes, within 30 days.", "Source: returns.md"]
    assert "Bring the receipt" in str(model.requests[0].messages)


async def test_if_the_model_fails_the_page_is_the_answer() -> None:
    async with AgentTester(WritingDesk, peers={"writer": Writer}, model=FakeModel([error(401)])) as t:
        assert "within 30 days" in (await t.say("Can I return my bicycle?"))[0]
