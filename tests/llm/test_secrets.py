"""No key, no prompt and no word of anybody is printed: the platform as a process, its whole log, `check` and `status`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from spade_coreason import AgentTester, ConfigError, load_settings
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.llm.options import Endpoint
from tests.llm.test_agent import manifest
from tests.support.chat_completions import (
    ChatServer,
    CompletionStream,
    broken_answer,
    error_answer,
    hanging_answer,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.program import run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

WORD = "x7391y"  # in every key, prompt, question and answer
KEYS = {"file": f"sk-file-{WORD}", "environment": f"sk-env-{WORD}", "configuration": f"sk-conf-{WORD}"}
CLERK = f'''
from spade_coreason import AgentDefinition
from spade_coreason.llm import LLMAgent


def diagnose(name: str) -> str:
    """Fails."""
    raise ValueError(f"{{name}} is ill")


class Clerk(LLMAgent):
    """Answers."""

    default_prompt = "The prompt is {WORD}."
    default_tools = (diagnose,)

    async def assist(self, request, session, response):
        if "crash" in request.payload["query"]:
            raise ValueError(f"this cannot be answered: {{request.payload}}")
        await super().assist(request, session, response)


class Former(LLMAgent):
    """Answers with data."""

    def __init__(self, memory, **options):
        outputs = {{"type": "object", "properties": {{"sum": {{"type": "integer"}}}}, "required": ["sum"]}}
        plain = AgentDefinition.simple("former", system_prompt="{WORD}").model_dump(by_alias=True)
        plain["capabilities"] = [{{"name": "add", "outputs": outputs}}]
        super().__init__(AgentDefinition.model_validate(plain), memory, **options)
'''


async def _answer(wire: CompletionStream) -> web.Response | None:
    """What the question wants; whatever fails quotes the question and the key."""
    said = message_contents(wire.asked, "user")[-1]
    quoted = f"{said} {wire.asked['messages'][0]['content']} {json.dumps(KEYS)}"
    if wire.asked["messages"][-1]["role"] == "tool":
        await text_answer(f"Done, {WORD}.")(wire)
    elif "refused" in said:
        return await error_answer(401, quoted)(wire)
    elif "fails" in said:
        return await error_answer(500, quoted)(wire)
    elif "page" in said:
        return web.Response(text=f"<html>{quoted}</html>", content_type="text/html")
    elif "breaks" in said:
        await broken_answer(f"Dear {WORD}", way="error")(wire)
    elif "nonsense" in said:
        await wire.raw(f"data: {{{quoted}\n\n")
    elif "hangs" in said:
        await hanging_answer(f"Dear {WORD}")(wire)
    elif "tools" in said:
        wanted = [("diagnose", {"name": WORD}), (WORD, {}), ("diagnose", f'{{"{WORD}')]
        await tool_call_answer(*wanted, ("remember_interaction_info", {"information": WORD}))(wire)
    elif "response_format" in wire.asked:
        await text_answer(json.dumps({"sum": WORD}))(wire)
    else:
        await text_answer(f"Hello {WORD}")(wire)
    return None


async def test_nothing_of_what_is_said_and_no_key_is_printed(prosody: XmppServer, tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(CLERK)
    (tmp_path / "key").write_text(f"{KEYS['file']}\n")
    accounts = [await prosody.account() for _ in range(3)]
    async with ChatServer(_answer) as server:
        at = {"url": server.url, "tries": 2, "first_pause_s": 0.01, "timeout_s": 2}
        options = [
            {"endpoint": {**at, "api_key_file": str(tmp_path / "key")}},
            {},  # of the environment
            {"endpoint": {**at, "api_key": KEYS["configuration"]}},
        ]
        tls = {"ca_file": str(prosody.ca_file)}
        where = {"mode": "external", "domain": prosody.domain, "host": prosody.host, "port": prosody.port, "tls": tls}
        usual = {"model": "small", "show_tools": False}
        agents = [
            {
                "jid": jid,
                "password": password,
                "agent": f"clerk:{kind}",
                "options": {**usual, **option},
            }
            for (jid, password), kind, option in zip(accounts, ("Clerk", "Clerk", "Former"), options, strict=True)
        ]
        configuration = tmp_path / "platform.yaml"
        configuration.write_text(json.dumps({"server": where, "data_dir": "data", "agents": agents}))
        configuration.chmod(0o600)
        environment = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEYS["environment"]}
        with run_in_background(
            "-v", "up", "-c", "platform.yaml", cwd=tmp_path, env=environment, until=r"^Ready", errors=["ValueError (clerk.py"]
        ) as up:
            async with StockClient(*await prosody.account(), prosody) as person:
                for jid, _ in accounts[:2]:
                    assert await person.ask(f"hello, I am {WORD}", jid) == f"Hello {WORD}"
                    assert WORD not in await person.ask(f"refused {WORD}", jid)
                jid = accounts[0][0]
                assert "incident" in await person.ask(f"crash {WORD}", jid)
                for mood in ("fails", "page", "nonsense"):
                    assert WORD not in await person.ask(f"{mood} {WORD}", jid)
                for mood in ("breaks", "hangs"):
                    assert (await person.ask(f"{mood} {WORD}", jid)).startswith(f"Dear {WORD}")
                    assert WORD not in (await person.answer())["body"]
                assert await person.ask(f"tools {WORD}", jid) == f"Done, {WORD}."
                assert WORD not in await person.ask(f"data {WORD}", accounts[2][0])
                assert WORD not in await person.ask("/status", jid)
            status = up.ask("status", "--json", "-c", "platform.yaml")
            code, out, err = up.stop()
        assert code == 0
        assert {key.removeprefix("Bearer ") for key in server.keys} == set(KEYS.values())
        check = await asyncio.to_thread(run_command, "check", "-c", "platform.yaml", "--json", cwd=tmp_path, env=environment)
    assert check.returncode == 0, check.stdout
    assert "raised ValueError" in err
    assert "refuses the key (401)" in err
    assert "incident" in err
    for printed in (up.output, out, err, status.stdout, status.stderr, check.stdout, check.stderr):
        assert WORD not in printed
    assert WORD not in repr(load_settings(configuration, tmp_path, {}))


def test_a_key_is_in_no_repr_and_in_no_error(tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://127.0.0.1:9/v1", api_key=KEYS["configuration"])
    agent = LLMAgent(manifest(), model="small", endpoint=endpoint)
    assert WORD not in repr(endpoint) + str(endpoint) + repr(endpoint.model_dump()) + endpoint.model_dump_json()
    assert WORD not in repr(agent) + repr(agent._model) + repr(agent._client)
    key = tmp_path / "key"
    for wrong in (f"{WORD} {WORD}", f"{WORD}\n{WORD}", f"{WORD}\x00", f"{WORD}é"):
        key.write_text(wrong)
        for given in ({"api_key": wrong}, {"api_key_file": str(key)}, {"url": f"http://{WORD}@a/v1"}, {"api_key": [wrong]}):
            with pytest.raises(ConfigError) as raised:
                LLMAgent(manifest(), model="small", endpoint={"url": "http://127.0.0.1:9/v1", **given})
            assert WORD not in str(raised.value)
            assert str(raised.value).startswith("options.endpoint.")
    key.write_text(" \n")
    with pytest.raises(ConfigError, match=r"options\.endpoint\.api_key_file: is no key: it is empty"):
        LLMAgent(manifest(), model="small", endpoint={"url": "http://127.0.0.1:9/v1", "api_key_file": str(key)})


async def test_what_the_environment_has_for_its_own_server_goes_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORG_ID", "PROJECT_ID", "ADMIN_KEY", "WEBHOOK_SECRET", "API_KEY"):
        monkeypatch.setenv(f"OPENAI_{name}", WORD)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Gateway: {WORD}\nauthorization: Bearer {WORD}")
    seen: list[str] = []

    async def answer(wire: CompletionStream) -> None:
        seen.append(str(wire.headers))
        await text_answer("yes")(wire)

    async with ChatServer(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for given in ({"url": server.url, "api_key": "mine"}, {}):
            async with AgentTester(LLMAgent(manifest(), model="small", endpoint=given)) as t:
                assert (await t.ask("hi")).text == "yes"
    assert WORD not in seen[0]
    assert "Bearer mine" in seen[0]
    assert f"'x-gateway': '{WORD}'" in seen[1].lower()
