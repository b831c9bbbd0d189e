"""No key, no prompt and no message is printed: the platform as a process, its whole log, `check` and `status`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from spade_coreason import AgentTester, ConfigError, load_settings
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.llm.options import Endpoint
from tests.llm.test_agent import helper_manifest
from tests.support.chat_completions import (
    ChatCompletionsServer,
    CompletionStream,
    broken_answer,
    error_answer,
    hanging_answer,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.hosting import write_settings
from tests.support.program import run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

SECRET_WORD = "x7391y"  # in every key, prompt, question and answer
KEYS = {"file": f"sk-file-{SECRET_WORD}", "environment": f"sk-env-{SECRET_WORD}", "configuration": f"sk-conf-{SECRET_WORD}"}
CLERK = f'''
from spade_coreason import AgentDefinition
from spade_coreason.llm import LLMAgent


def diagnose(name: str) -> str:
    """Fails."""
    raise ValueError(f"{{name}} is ill")


class Clerk(LLMAgent):
    """Answers."""

    default_prompt = "The prompt is {SECRET_WORD}."
    default_tools = (diagnose,)

    async def assist(self, request, session, response):
        if "crash" in request.payload["query"]:
            raise ValueError(f"this cannot be answered: {{request.payload}}")
        await super().assist(request, session, response)


class Former(LLMAgent):
    """Answers with data."""

    def __init__(self, memory, **options):
        outputs = {{"type": "object", "properties": {{"sum": {{"type": "integer"}}}}, "required": ["sum"]}}
        plain = AgentDefinition.simple("former", system_prompt="{SECRET_WORD}").model_dump(by_alias=True)
        plain["capabilities"] = [{{"name": "add", "outputs": outputs}}]
        super().__init__(AgentDefinition.model_validate(plain), memory, **options)
'''


async def _answer(wire: CompletionStream) -> web.Response | None:
    """Answer as the question demands; each failure quotes the question and the key."""
    said = message_contents(wire.body, "user")[-1]
    quoted = f"{said} {wire.body['messages'][0]['content']} {json.dumps(KEYS)}"
    if wire.body["messages"][-1]["role"] == "tool":
        await text_answer(f"Done, {SECRET_WORD}.")(wire)
    elif "refused" in said:
        return await error_answer(401, quoted)(wire)
    elif "fails" in said:
        return await error_answer(500, quoted)(wire)
    elif "page" in said:
        return web.Response(text=f"<html>{quoted}</html>", content_type="text/html")
    elif "breaks" in said:
        await broken_answer(f"Dear {SECRET_WORD}", way="error")(wire)
    elif "nonsense" in said:
        await wire.raw(f"data: {{{quoted}\n\n")
    elif "hangs" in said:
        await hanging_answer(f"Dear {SECRET_WORD}")(wire)
    elif "tools" in said:
        wanted = [("diagnose", {"name": SECRET_WORD}), (SECRET_WORD, {}), ("diagnose", f'{{"{SECRET_WORD}')]
        await tool_call_answer(*wanted, ("remember_interaction_info", {"information": SECRET_WORD}))(wire)
    elif "response_format" in wire.body:
        await text_answer(json.dumps({"sum": SECRET_WORD}))(wire)
    else:
        await text_answer(f"Hello {SECRET_WORD}")(wire)
    return None


async def test_no_message_and_no_key_is_printed(prosody: XmppServer, tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(CLERK)
    (tmp_path / "key").write_text(f"{KEYS['file']}\n")
    accounts = [await prosody.account() for _ in range(3)]
    async with ChatCompletionsServer(_answer) as server:
        endpoint = {"url": server.url, "tries": 2, "first_pause_s": 0.01, "timeout_s": 2}
        options = [
            {"endpoint": {**endpoint, "api_key_file": str(tmp_path / "key")}},
            {},  # of the environment
            {"endpoint": {**endpoint, "api_key": KEYS["configuration"]}},
        ]
        common_options = {"model": "small", "show_tools": False}
        agents = [
            {
                "jid": jid,
                "password": password,
                "agent": f"clerk:{kind}",
                "options": {**common_options, **option},
            }
            for (jid, password), kind, option in zip(accounts, ("Clerk", "Clerk", "Former"), options, strict=True)
        ]
        configuration = write_settings(
            tmp_path / "platform.yaml", {"server": prosody.settings, "data_dir": "data", "agents": agents}
        )
        environment = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEYS["environment"]}
        with run_in_background(
            "-v", "up", "-c", "platform.yaml", cwd=tmp_path, env=environment, until=r"^Ready", errors=["ValueError (clerk.py"]
        ) as up:
            async with StockClient(*await prosody.account(), prosody) as person:
                for jid, _ in accounts[:2]:
                    assert await person.ask(f"hello, I am {SECRET_WORD}", jid) == f"Hello {SECRET_WORD}"
                    assert SECRET_WORD not in await person.ask(f"refused {SECRET_WORD}", jid)
                jid = accounts[0][0]
                assert "incident" in await person.ask(f"crash {SECRET_WORD}", jid)
                for question in ("fails", "page", "nonsense"):
                    assert SECRET_WORD not in await person.ask(f"{question} {SECRET_WORD}", jid)
                for question in ("breaks", "hangs"):
                    assert (await person.ask(f"{question} {SECRET_WORD}", jid)).startswith(f"Dear {SECRET_WORD}")
                    assert SECRET_WORD not in (await person.answer())["body"]
                assert await person.ask(f"tools {SECRET_WORD}", jid) == f"Done, {SECRET_WORD}."
                assert SECRET_WORD not in await person.ask(f"data {SECRET_WORD}", accounts[2][0])
                assert SECRET_WORD not in await person.ask("/status", jid)
            status = up.run_command("status", "--json", "-c", "platform.yaml")
            code, out, err = up.stop()
        assert code == 0
        assert {key.removeprefix("Bearer ") for key in server.keys} == set(KEYS.values())
        check = await asyncio.to_thread(run_command, "check", "-c", "platform.yaml", "--json", cwd=tmp_path, env=environment)
    assert check.returncode == 0, check.stdout
    assert "raised ValueError" in err
    assert "refuses the key (401)" in err
    assert "incident" in err
    for printed in (up.output, out, err, status.stdout, status.stderr, check.stdout, check.stderr):
        assert SECRET_WORD not in printed
    assert SECRET_WORD not in repr(load_settings(configuration, tmp_path, {}))


def test_a_key_is_in_no_repr_and_in_no_error(tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://127.0.0.1:9/v1", api_key=KEYS["configuration"])
    agent = LLMAgent(helper_manifest(), model="small", endpoint=endpoint)
    assert SECRET_WORD not in repr(endpoint) + str(endpoint) + repr(endpoint.model_dump()) + endpoint.model_dump_json()
    assert SECRET_WORD not in repr(agent) + "".join(map(repr, vars(agent).values()))
    key = tmp_path / "key"
    for wrong in (f"{SECRET_WORD} {SECRET_WORD}", f"{SECRET_WORD}\n{SECRET_WORD}", f"{SECRET_WORD}\x00", f"{SECRET_WORD}é"):
        key.write_text(wrong)
        for given in (
            {"api_key": wrong},
            {"api_key_file": str(key)},
            {"url": f"http://{SECRET_WORD}@a/v1"},
            {"api_key": [wrong]},
        ):
            with pytest.raises(ConfigError) as raised:
                LLMAgent(helper_manifest(), model="small", endpoint={"url": "http://127.0.0.1:9/v1", **given})
            assert SECRET_WORD not in str(raised.value)
            assert str(raised.value).startswith("options.endpoint.")
    key.write_text(" \n")
    with pytest.raises(ConfigError, match=r"options\.endpoint\.api_key_file: is not a valid key: it is empty"):
        LLMAgent(helper_manifest(), model="small", endpoint={"url": "http://127.0.0.1:9/v1", "api_key_file": str(key)})


async def test_openai_variables_go_only_to_the_server_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORG_ID", "PROJECT_ID", "ADMIN_KEY", "WEBHOOK_SECRET", "API_KEY"):
        monkeypatch.setenv(f"OPENAI_{name}", SECRET_WORD)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Gateway: {SECRET_WORD}\nauthorization: Bearer {SECRET_WORD}")
    seen: list[str] = []

    async def answer(wire: CompletionStream) -> None:
        seen.append(str(wire.headers))
        await text_answer("yes")(wire)

    async with ChatCompletionsServer(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for given in ({"url": server.url, "api_key": "mine"}, {}):
            async with AgentTester(LLMAgent(helper_manifest(), model="small", endpoint=given)) as t:
                assert (await t.ask("hi")).text == "yes"
    assert SECRET_WORD not in seen[0]
    assert "Bearer mine" in seen[0]
    assert f"'x-gateway': '{SECRET_WORD}'" in seen[1].lower()
