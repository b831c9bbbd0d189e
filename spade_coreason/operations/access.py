"""The operations on access: who was admitted or rejected by operators, and who waits for a decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..domain.callers import WEBHOOK_PREFIX, is_caller, key_of, refuse_caller
from ..domain.jid import bare_jid, local_part, parse_jid
from ..exceptions import ConfigError
from ..storage import KeyRepository
from .definition import OPERATORS, Call, operation
from .host import select_agent, stored_agents
from .memory import OfAgents
from .sessions import OfPerson

AccessState: TypeAlias = Literal["admitted", "rejected", "waiting", "refused"]


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """A person (a bare JID) outside of the configured rules of an agent.

    Operators have `admitted` or `rejected` them, or were asked (`waiting`, in this run). Others were `refused`.
    """

    agent: str
    person: str
    state: AccessState


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """A decision about a person. `is_allowed`: they may talk to the agent now; None if it does not run."""

    agent: str
    person: str
    is_allowed: bool | None


@operation("access.list", OPERATORS)
async def list_access(call: Call, arguments: OfAgents) -> list[AccessEntry]:
    """List the people whom operators admitted or rejected, who wait for a decision, or who were refused."""
    found = []
    for agent in await stored_agents(call.host, arguments.agent):
        stored, running = await call.host.repository(agent).load_agent(), await call.host.running_agent(agent)
        states: dict[str, AccessState] = dict.fromkeys(stored.refused_people, "refused")
        states |= {person: "admitted" if is_admitted else "rejected" for person, is_admitted in stored.admissions.items()}
        states |= dict.fromkeys(() if running is None else await running.list_waiting_people(), "waiting")
        found += [AccessEntry(agent, person, state) for person, state in sorted(states.items())]
    return found


@operation("access.admit", OPERATORS, is_change=True)
async def admit_person(call: Call, arguments: OfPerson) -> AccessDecision:
    """Give a person access to an agent."""
    return await _decide(call, arguments, is_admitted=True)


@operation("access.reject", OPERATORS, is_change=True)
async def reject_person(call: Call, arguments: OfPerson) -> AccessDecision:
    """Withdraw the access of a person to an agent. Their turns end, and what waits is not answered.

    Keys that stand for them are revoked at this agent for good. The address of a key means the key itself.
    """
    return await _decide(call, arguments, is_admitted=False)


async def _decide(call: Call, arguments: OfPerson, *, is_admitted: bool) -> AccessDecision:
    try:
        person = bare_jid(parse_jid(refuse_caller(arguments.person) if is_admitted else arguments.person))
    except ValueError as error:
        raise ConfigError("person", str(error)) from error
    agent = await select_agent(call.host, arguments.agent)
    if is_caller(person):
        await _check_key(call, agent, person)
    repository = call.host.repository(agent)
    is_new = (await repository.load_agent()).admissions.get(person) is not is_admitted
    if is_new or (not is_admitted and await repository.find_keys(person)):
        await call.record(agent, "access.admit" if is_admitted else "access.reject", person, person=person)
    if (running := await call.host.running_agent(agent, changes=True)) is not None:
        return AccessDecision(agent, person, await running.decide_access(person, is_admitted))
    await repository.save_admission(person, is_admitted)
    if is_admitted:
        await repository.delete_refusal(person)
    return AccessDecision(agent, person, None)


async def _check_key(call: Call, agent: str, address: str) -> None:
    """Raise ConfigError unless an address in the domain of callers is that of a key for an agent."""
    if (name := local_part(address)).startswith(WEBHOOK_PREFIX):
        webhook = name.removeprefix(WEBHOOK_PREFIX)
        raise ConfigError("person", f"{address} is a webhook; revoke it: `spade-coreason webhooks revoke {webhook}`")
    if address != key_of(address):
        raise ConfigError("person", f"{address} is one of the people of a key; reject the key: {key_of(address)}")
    key = None if call.host.database is None else await KeyRepository(call.host.database).find(local_part(address))
    if key is None or agent not in (*key.agent_jids, *key.withdrawn_jids):
        raise ConfigError("person", f"there is no key {local_part(address)} for {agent}; see `spade-coreason keys list`")
