"""The operations on keys, on stored data: what they refuse, whom they tell, and that no secret is anywhere."""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session, agent, load_settings
from spade_coreason.app.stored_host import open_stored_host
from spade_coreason.domain.callers import caller_address, person_below
from spade_coreason.domain.preferences import PREFERENCES_SCOPE, Preferences
from spade_coreason.exceptions import ConfigError, ForbiddenError
from spade_coreason.operations.access import list_access, reject_person
from spade_coreason.operations.definition import Actor, Call, CallerKind, NoArguments, OfAgents
from spade_coreason.operations.doors.keys import (
    IssuedKey,
    ListedKey,
    OfKey,
    create_key,
    list_keys,
    revoke_key,
    rotate_key,
)
from spade_coreason.operations.host import OperationHost
from spade_coreason.operations.sessions import OfPerson
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.storage import KeyRepository, hash_secret
from spade_coreason.testing import Policy

NOTES, ECHO, CAROL = "notes@localhost", "echo@localhost", "carol@localhost"
TESTER = Actor(CallerKind.MACHINE_USER, "user tester")
"""The user of the machine."""


@agent
async def greet(request: AgentRequest, session: Session, response: Response) -> None:
    """Greet."""
    await response.markdown("hello")


def write_configuration(directory: Path, **keys: Any) -> Path:
    agents = [
        {"jid": NOTES, "agent": "spade_coreason.agents.notes:NotesAgent"},
        {"jid": ECHO, "agent": "spade_coreason.agents.echo:EchoAgent", "access": {"operators": ["boss@localhost"]}},
    ]
    file = directory / "platform.yaml"
    file.write_text(json.dumps({"server": {"mode": "embedded"}, "data_dir": str(directory / "data"), "agents": agents, **keys}))
    return file


@asynccontextmanager
async def open_data(directory: Path, **keys: Any) -> AsyncIterator[OperationHost]:
    settings = load_settings(write_configuration(directory, **keys), directory, {})
    async with open_stored_host(settings, [], is_exclusive=True, creates_directory=True) as host:
        yield host


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[OperationHost]:
    """The stored data of a platform with two agents, which does not run."""
    async with open_data(tmp_path) as host:
        yield host


async def create(host: OperationHost, name: str = "website", **values: Any) -> IssuedKey:
    arguments = {"name": name, "agents": ["notes"], **values}
    return await create_key(Call(host, TESTER), create_key.read_arguments(arguments))


async def rotate(host: OperationHost, name: str = "website", **values: Any) -> IssuedKey:
    return await rotate_key(Call(host, TESTER), rotate_key.read_arguments({"name": name, **values}))


async def load(host: OperationHost) -> list[ListedKey]:
    return await list_keys(Call(host, TESTER), NoArguments())


async def read_trail(host: OperationHost, agent: str = NOTES) -> list[tuple[str, str, str]]:
    records = await host.repository(agent).audit_trail.load_newest()
    return [tuple((record.entry or {})[key] for key in ("actor", "action", "resource")) for record in records]


async def read_notices(host: OperationHost, agent: str = NOTES) -> list[tuple[str, str]]:
    found = await host.repository(agent).notifications.load_page()
    return [(one.owner, one.values["content"]["question"]) for one in found]


async def test_a_new_key_is_listed_without_its_secret(host: OperationHost) -> None:
    assert await load(host) == []
    issued = await create(host, agents=["notes", ECHO, "NOTES@localhost/here"])
    key = issued.key
    assert (key.name, key.address, key.agents, key.account, key.state) == (
        "website",
        "website@callers.invalid",
        [NOTES, ECHO],
        "",
        "live",
    )
    assert key.expires_at == key.created_at + timedelta(days=90)
    assert (key.created_by, key.last_used_at, key.previous_until, key.withdrawn) == ("user tester", None, None, [])
    assert await load(host) == [key]
    for agent_jid in (NOTES, ECHO):
        assert await read_trail(host, agent_jid) == [("user tester", "keys.create", "key website")]
        assert await read_notices(host, agent_jid) == []


async def test_an_end_is_chosen_or_never_comes(host: OperationHost) -> None:
    assert (await create(host, "never", lifetime_s=None)).key.expires_at is None
    short = (await create(host, "short", lifetime_s=60)).key
    assert short.expires_at == short.created_at + timedelta(minutes=1)
    for wrong in (0, -1, 3661 * 86_400):
        with pytest.raises(ConfigError, match="lifetime_s"):
            await create(host, "wrong", lifetime_s=wrong)


@pytest.mark.parametrize(
    ("values", "place", "problem"),
    [
        ({"name": "A"}, "name", "cannot be the name of a key; write 1 to 40"),
        ({"name": "-a"}, "name", "cannot be the name"),
        ({"name": "a.b"}, "name", "cannot be the name"),
        ({"name": "a\n"}, "name", "cannot be the name"),
        ({"name": "ä"}, "name", "cannot be the name"),
        ({"name": "a" * 41}, "name", "cannot be the name"),
        ({"name": "taken"}, "name", "taken is, or was, the name of another key"),
        ({"agents": ["nobody"]}, "agents", f'there is no agent "nobody"; the agents are {NOTES}, {ECHO}'),
        ({"agents": ["notes@elsewhere.example"]}, "agents", "there is no agent"),
        ({"agents": ["*"]}, "agents", "there is no agent"),
        ({"agents": []}, "agents", "must not be empty"),
        ({"account": "carol"}, "account", "'carol' is not a JID"),
        ({"account": "x@callers.invalid"}, "account", "where no account can be"),
        ({"account": "x@CALLERS.Invalid"}, "account", "where no account can be"),
        ({"account": ECHO}, "account", f"{ECHO} is an agent"),
        ({"account": CAROL, "users_by_header": True}, "users_by_header", "a key for one person cannot ask for others too"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_stored(
    values: dict[str, Any], place: str, problem: str, host: OperationHost
) -> None:
    await create(host, "taken")
    before = await load(host), await read_trail(host)
    with pytest.raises(ConfigError) as error:
        await create(host, **values)
    assert error.value.place == place
    assert problem in error.value.problem
    assert (await load(host), await read_trail(host)) == before


async def test_a_person_is_told_of_a_key_that_stands_for_them(host: OperationHost) -> None:
    issued = await create(host, "editor", account="Carol@localhost/phone", agents=[ECHO, "notes"])
    assert issued.key.account == CAROL
    [(person, text)] = await read_notices(host, ECHO)
    assert person == CAROL
    assert text.splitlines() == [
        f"user tester made the key editor, which asks {ECHO}, {NOTES} in your name.",
        "A program that has it can ask, and read the conversations that it has itself. It sees and changes nothing else of"
        " yours, and what it asks counts for your quotas.",
        "If you do not want it, ask an operator to end it by `spade-coreason keys revoke editor`.",
    ]
    await rotate(host, "editor")
    assert (await read_notices(host, ECHO))[0][1].startswith(
        f"user tester gave the key editor, which asks {ECHO}, {NOTES} in your name, a new secret.\n"
    )
    assert await read_notices(host, NOTES) == []
    assert issued.secret not in str(await read_notices(host, ECHO))


@pytest.mark.parametrize(("language", "word"), [("de", "Schlüssel"), ("es", "clave"), ("fr", "key")])
async def test_a_person_is_told_in_their_language(language: str, word: str, host: OperationHost) -> None:
    stored = Preferences(language=language, notifications=False).to_json()
    await host.repository(NOTES).save_variable(PREFERENCES_SCOPE, CAROL, PREFERENCES_SCOPE, stored)
    await create(host, account=CAROL)
    [(_, text)] = await read_notices(host)
    assert f"{word} website" in text
    assert "`spade-coreason keys revoke website`" in text


async def test_a_rotated_key_has_a_new_secret_and_the_one_of_before_for_a_time(host: OperationHost) -> None:
    first = await create(host, lifetime_s=30 * 86_400)
    second = await rotate(host)
    assert first.secret != second.secret
    assert second.key.previous_until == second.key.issued_at + timedelta(days=1)
    assert second.key.expires_at == second.key.issued_at + timedelta(days=30)
    assert (await rotate(host, keep_s=0)).key.previous_until is None
    assert [action for _, action, _ in await read_trail(host)] == ["keys.rotate", "keys.rotate", "keys.create"][::-1]
    for wrong in (-1, 31 * 86_400):
        with pytest.raises(ConfigError, match="keep_s"):
            await rotate(host, keep_s=wrong)


async def test_a_revoked_key_stays_listed_and_its_name_taken(host: OperationHost) -> None:
    await create(host)
    revoked = await revoke_key(Call(host, TESTER), OfKey(name="website"))
    assert (revoked.state, revoked.revoked_at is None) == ("revoked", False)
    assert await revoke_key(Call(host, TESTER), OfKey(name="website")) == revoked
    assert await load(host) == [revoked]
    assert [action for _, action, _ in await read_trail(host)] == ["keys.create", "keys.revoke"]
    with pytest.raises(ConfigError, match="the name of another key"):
        await create(host)
    with pytest.raises(ConfigError, match="revoked for good"):
        await rotate(host)


async def test_a_key_that_is_not_there_is_named(host: OperationHost) -> None:
    for name in ("keys.revoke", "keys.rotate"):
        operation = OPERATIONS[name]
        with pytest.raises(ConfigError, match="there is no key 'nothing'; `spade-coreason keys list` shows all"):
            await operation(Call(host, TESTER), operation.read_arguments({"name": "nothing"}))


@pytest.mark.parametrize("kind", [CallerKind.OPERATOR, CallerKind.PERSON])
@pytest.mark.parametrize("name", ["keys.create", "keys.list", "keys.rotate", "keys.revoke"])
async def test_only_the_user_of_the_machine_has_to_do_with_keys(name: str, kind: CallerKind, host: OperationHost) -> None:
    arguments = {"keys.create": {"name": "a", "agents": [NOTES], "account": CAROL}, "keys.list": {}}.get(name, {"name": "a"})
    operation = OPERATIONS[name]
    with pytest.raises(ForbiddenError):
        await operation(Call(host, Actor(kind, CAROL, NOTES)), operation.read_arguments(arguments))
    assert await load(host) == []


# Rejections


async def test_a_rejected_person_loses_their_keys_at_that_agent_and_admitting_them_brings_none_back(
    host: OperationHost,
) -> None:
    await create(host, "editor", account=CAROL, agents=[NOTES, ECHO])
    await create(host, "other")
    reject, admit = OPERATIONS["access.reject"], OPERATIONS["access.admit"]
    for operation in (reject, admit):
        await operation(Call(host, TESTER), operation.read_arguments({"person": CAROL, "agent": NOTES}))
        [editor, other] = await load(host)
        assert (editor.agents, editor.withdrawn, editor.state) == ([ECHO], [NOTES], "live")
        assert other.agents == [NOTES]
    await reject_person(Call(host, TESTER), OfPerson(person=CAROL, agent=ECHO))
    [editor, _] = await load(host)
    assert (editor.agents, editor.withdrawn, editor.state) == ([], [NOTES, ECHO], "revoked")


async def test_a_second_rejection_ends_a_key_that_was_made_since_and_is_in_the_trail(host: OperationHost) -> None:
    for number in (1, 2):
        await create(host, f"editor-{number}", account=CAROL)
        await reject_person(Call(host, TESTER), OfPerson(person=CAROL, agent=NOTES))
    assert {key.state for key in await load(host)} == {"revoked"}
    assert [action for _, action, _ in await read_trail(host)] == ["keys.create", "access.reject"] * 2
    await reject_person(Call(host, TESTER), OfPerson(person=CAROL, agent=NOTES))
    assert len(await read_trail(host)) == 4


async def test_the_address_of_a_key_is_rejected_and_never_admitted(host: OperationHost) -> None:
    await create(host, agents=[NOTES, ECHO])
    address = caller_address("website")
    with pytest.raises(ConfigError, match="spade-coreason keys create"):
        await OPERATIONS["access.admit"](Call(host, TESTER), OfPerson(person=address, agent=NOTES))
    for person, problem in [
        (caller_address("other"), "there is no key other"),
        (person_below("website", "user"), f"is one of the people of a key; reject the key: {address}"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            await reject_person(Call(host, TESTER), OfPerson(person=person, agent=NOTES))
    await reject_person(Call(host, TESTER), OfPerson(person=address, agent=NOTES))
    [key] = await load(host)
    assert (key.agents, key.withdrawn) == ([ECHO], [NOTES])
    assert [(one.person, one.state) for one in await list_access(Call(host, TESTER), OfAgents(agent=NOTES))] == [
        (address, "rejected")
    ]


async def test_an_operator_rejects_a_key_in_a_chat_and_admits_none() -> None:
    async with AgentTester(greet, allow=("*",), policy=Policy(operators=frozenset({"boss@localhost"}))) as t:
        [(agent_jid, runner)] = t.runners.items()
        database = runner.executor.context.host.database
        assert database is not None
        keys = KeyRepository(database)
        values: dict[str, Any] = {"users": "", "created_by": "user tester", "now": datetime.now(UTC)}
        for name, account in (("website", ""), ("editor", CAROL)):
            assert await keys.create(keys.make(name, [agent_jid], account, hash_secret(name), **values))
        for person in ("website@callers.invalid", CAROL):
            assert await t.say(f"/reject {person}", user="boss@localhost")
        [refusal] = await t.say("/admit website@callers.invalid", user="boss@localhost")
        assert "spade-coreason keys create" in refusal
        [refusal] = await t.say("/reject other@callers.invalid", user="boss@localhost")
        assert "there is no key other" in refusal
        assert [key.agent_jids for key in await keys.load()] == [[], []]


# Secrets


async def test_no_secret_is_stored_logged_or_shown_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = []
    async with open_data(tmp_path) as host:
        issued = await create(host, account=CAROL)
        secrets += [issued.secret, (await rotate(host)).secret, (await rotate(host)).secret]
        shown = [repr(issued), str(issued), str(await load(host)), str(await read_trail(host)), str(await read_notices(host))]
        shown += [str(list_keys.result.dump_python(await load(host), mode="json")), repr(dataclasses.asdict(issued.key))]
    texts = [*shown, caplog.text]
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            texts.append(file.read_bytes().decode("latin-1"))
    with closing(sqlite3.connect(tmp_path / "data" / "platform.db")) as connection:
        texts += list(connection.iterdump())
    assert any("keys.create" in text for text in texts)
    assert len({secret[:11] for secret in secrets}) == 3
    for secret in secrets:
        assert not any(secret[3:11] in text for text in texts)
