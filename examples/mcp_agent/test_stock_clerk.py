import sys
from pathlib import Path

from stock_clerk import StockClerk

from spade_coreason import AgentTester, load_manifest
from spade_coreason.testing import FakeModel, tool_call

HERE = Path(__file__).parent


def clerk(model: str | None = None) -> StockClerk:
    servers = {"stock": {"command": [sys.executable, str(HERE / "stock_server.py")]}}
    return StockClerk(load_manifest(HERE / "manifest.yaml"), model=model, mcp=servers)


async def test_it_asks_the_server_for_the_stock() -> None:
    model = FakeModel([tool_call("stock__count", article="lamp"), "There are 12 lamps."])
    async with AgentTester(clerk, model=model) as t:
        assert (await t.ask("How many lamps are there?")).text == "There are 12 lamps."
    assert model.requests[1].tool_results == ["12 pieces"]


async def test_the_model_never_sees_the_tool_that_changes_the_stock() -> None:
    model = FakeModel([tool_call("stock__write_off", article="lamp", pieces=2), "I cannot do that."])
    async with AgentTester(clerk, model=model) as t:
        assert (await t.ask("Write off two lamps")).text == "I cannot do that."
    assert {"stock__count", "stock__shelf"} <= set(model.requests[0].tools)
    assert "stock__write_off" not in model.requests[0].tools
    assert "write_off" in model.requests[1].tool_results[0]  # the error that the model is told


async def test_it_works_without_a_model() -> None:
    async with AgentTester(clerk, options={"model": "script"}) as t:
        assert "shelf B1" in (await t.ask("On which shelf are the chairs?")).text
