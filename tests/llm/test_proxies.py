"""A language model, MCP servers and embeddings behind real proxies: SOCKS5, CONNECT, and plain HTTP."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentTester, ConfigError
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.memory import OpenAIApi
from spade_coreason.testing import FakeModel
from tests.llm.mcp.test_mcp_tools import run_legacy_http_server
from tests.support.certificates import sign_by_itself
from tests.support.chat_completions import ChatCompletionsServer, text_answer, tool_call_answer
from tests.support.mcp_servers.servers import last_tool_results
from tests.support.model_server import ModelServer
from tests.support.proxy_server import ProxyServer

MODEL_URL = "http://model.example:8000/v1"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def make_agent(url: str, **options: Any) -> LLMAgent:
    endpoint = {"url": url, "api_key": "sk-secret", "first_pause_s": 0.01}
    return LLMAgent(AgentDefinition.simple("helper"), model="small", endpoint=endpoint, **options)


async def ask_model(url: str) -> str | None:
    async with AgentTester(lambda: make_agent(url)) as t:
        return (await t.ask("Hi")).text


@pytest.mark.parametrize(
    ("variable", "scheme", "login", "way"),
    [
        ("ALL_PROXY", "socks5", "", "socks5"),
        ("ALL_PROXY", "socks5h", "me:word", "socks5"),
        ("HTTP_PROXY", "http", "", "forward"),
        ("HTTP_PROXY", "http", "me:word", "forward"),
    ],
)
async def test_a_model_is_asked_through_the_proxy_which_resolves_its_name(
    variable: str, scheme: str, login: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChatCompletionsServer(text_answer("Hello")) as server, ProxyServer(server.url, login=login) as proxy:
        monkeypatch.setenv(variable, f"{scheme}://{f'{login}@' if login else ''}{proxy.address}")
        assert await ask_model(MODEL_URL) == "Hello"
        assert set(proxy.destinations) == {(way, "model.example:8000")}
        assert server.keys == ["Bearer sk-secret"]


@pytest.mark.parametrize(("scheme", "way"), [("http", "connect"), ("socks5", "socks5")])
async def test_a_model_with_tls_is_asked_through_a_tunnel(
    scheme: str, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = sign_by_itself(tmp_path, "model.example")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.certificate, files.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(files.certificate))
    async with ChatCompletionsServer(text_answer("Hello"), tls=tls) as server, ProxyServer(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://{proxy.address}")
        assert await ask_model("https://model.example/v1") == "Hello"
        assert set(proxy.destinations) == {(way, "model.example:443")}


@pytest.mark.parametrize("no_proxy", ["127.0.0.1", "127.0.0.0/8", "*", "127.0.0.1:PORT"])
async def test_an_exempted_model_is_asked_directly_whatever_the_proxy_is(
    no_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChatCompletionsServer(text_answer("Hello")) as server, ProxyServer(server.url) as proxy:
        monkeypatch.setenv("NO_PROXY", no_proxy.replace("PORT", server.url.split(":")[2].removesuffix("/v1")))
        for address in (f"http://{proxy.address}", f"socks5://{proxy.address}", f"socks://{proxy.address}"):
            monkeypatch.setenv("ALL_PROXY", address)
            assert await ask_model(server.url) == "Hello"
        assert proxy.destinations == []


async def test_a_proxy_that_is_away_or_refuses_is_named_in_the_log_without_its_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ProxyServer("http://127.0.0.1:9", login="me:word") as proxy:
        monkeypatch.setenv("ALL_PROXY", f"http://me:wrong@{proxy.address}")
        async with AgentTester(lambda: make_agent("https://model.example/v1")) as t:
            assert await t.say("Hi") == ["My language model cannot be reached."]
    assert "small: cannot be reached (https://model.example/v1, through the proxy of ALL_PROXY)" in caplog.text
    assert "wrong" not in caplog.text
    [problem] = await make_agent("https://model.example/v1").examine_models()
    assert str(problem) == ("the language model at https://model.example/v1, through the proxy of ALL_PROXY: cannot be reached")


async def test_an_mcp_server_is_called_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (tool_call_answer(("web__long", {})), text_answer("Done."))
    async with (
        ChatCompletionsServer(*answers) as server,
        run_legacy_http_server("a long text") as web_server,
        ProxyServer(web_server.url) as proxy,
    ):
        monkeypatch.setenv("ALL_PROXY", f"socks5://{proxy.address}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        mcp = {"web": {"url": "http://mcp.example/open", "headers": {"Authorization": "Bearer sk-secret"}}}
        async with AgentTester(lambda: make_agent(server.url, mcp=mcp)) as t:
            assert (await t.ask("go")).text == "Done."
        assert set(proxy.destinations) == {("socks5", "mcp.example:80")}
    assert "a long text" in last_tool_results(server.requests[1])[0]


@pytest.mark.parametrize("options", [{}, {"mcp": {"files": {"url": "https://mcp.example/mcp"}}}])
def test_an_unknown_kind_of_proxy_is_one_line_when_the_agent_is_built(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY" if options else "ALL_PROXY", "socks://me:secret@127.0.0.1:1080")
    with pytest.raises(ConfigError) as caught:
        make_agent(MODEL_URL, **options)
    variable = "HTTPS_PROXY" if options else "ALL_PROXY"
    assert str(caught.value) == (
        f"{variable}: socks:// proxies are not supported; write one of http://, https://, socks5://, socks5h://"
    )


async def test_a_model_in_this_process_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:1080")
    async with AgentTester(LLMAgent, model=FakeModel(["Hello"])) as t:
        assert (await t.ask("Hi")).text == "Hello"


@pytest.mark.parametrize(("scheme", "way"), [("http", "forward"), ("socks5h", "socks5")])
async def test_embeddings_and_summaries_go_through_the_proxy_too(
    scheme: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer() as server, ProxyServer(server.url, login="me:word") as proxy:
        monkeypatch.setenv("ALL_PROXY", f"{scheme}://me:word@{proxy.address}")
        api = OpenAIApi(MODEL_URL)
        answer = await api.post("embeddings", {"model": "small", "input": ["tea"]})
        await api.close()
        assert len(answer["data"]) == 1
        assert set(proxy.destinations) == {(way, "model.example:8000")}
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        direct = OpenAIApi(server.url)
        await direct.post("embeddings", {"model": "small", "input": ["tea"]})
        await direct.close()
        assert len(proxy.destinations) == 1
    monkeypatch.setenv("ALL_PROXY", "socks4://127.0.0.1:1080")
    with pytest.raises(ConfigError, match="ALL_PROXY: socks4:// proxies are not supported"):
        OpenAIApi(MODEL_URL)
