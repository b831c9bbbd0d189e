"""List, admit or reject people beyond the configured rules.

The rules themselves are in `access` of the configuration. Operators decide in a chat with /admit and /reject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .. import storage
from ..domain.callers import WEBHOOK_PREFIX, is_caller, key_of, refuse_caller
from ..domain.jid import bare_jid, local_part, parse_jid
from ..domain.texts.translation import N_, translate
from ..exceptions import ConfigError
from .definition import OPERATORS, Call, OfAgents, operation
from .host import select_agent, stored_agents
from .sessions import OfPerson
from .view import PERSON_FIELD, Slash, TableView, View

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


@operation(
    "access.list",
    OPERATORS,
    prefers_running=True,
    view=View(
        examples=["access list --agent notes"],
        table=TableView("people beyond the rules", columns=["agent", "person", "state"]),
        links=["sessions.list", "access.admit", "access.reject"],
        beside=["access.admit"],
    ),
)
async def list_access(call: Call, arguments: OfAgents) -> list[AccessEntry]:
    """List the people who were admitted, rejected or refused, or who wait for a decision.

    Only a running platform knows who waits.
    """
    found = []
    for agent in await stored_agents(call.host, arguments.agent):
        stored, waiting = (
            await call.host.repository(agent).load_agent(),
            (await call.host.open_agent(agent)).list_waiting_people(),
        )
        states: dict[str, AccessState] = dict.fromkeys(stored.refused_people, "refused")
        states |= {person: "admitted" if is_admitted else "rejected" for person, is_admitted in stored.admissions.items()}
        states |= dict.fromkeys(await waiting, "waiting")
        found += [AccessEntry(agent, person, state) for person, state in sorted(states.items())]
    return found


@operation(
    "access.admit",
    OPERATORS,
    is_change=True,
    view=View(
        examples=["access admit carol@example.com --agent notes"],
        given=["person"],
        done=lambda one: (
            f"{one.person} may talk to {one.agent}."
            if one.is_allowed is not False
            else f"{one.agent} has no operators (access.operators), so the admission of {one.person} does not count."
        ),
        slash=Slash(
            name="admit",
            description=N_("give a person access to me"),
            done=N_("{person} may talk to me now."),
            fields=(PERSON_FIELD,),
            usage="JID",
        ),
    ),
)
async def admit_person(call: Call, arguments: OfPerson) -> AccessDecision:
    """Give a person access to an agent.

    JID is the address of the person. It counts while the agent has operators (`access.operators`).
    """
    return await _decide(call, arguments, is_admitted=True)


def _describe_rejection(one: AccessDecision) -> str:
    text = N_("{person} may not talk to me any more.")
    if one.is_allowed:
        text = N_("{person} may still talk to me: the configuration allows it (access).")
    return translate(text, person=one.person)


@operation(
    "access.reject",
    OPERATORS,
    is_change=True,
    view=View(
        examples=["access reject carol@example.com --agent notes"],
        given=["person"],
        done=lambda one: (
            f"{one.person} may still talk to {one.agent}: the configuration allows it. Name the others in access.allow."
            if one.is_allowed
            else f"{one.person} has no admission to {one.agent}."
        ),
        slash=Slash(
            name="reject",
            description=N_("withdraw a person's access to me"),
            done=_describe_rejection,
            fields=(PERSON_FIELD,),
            usage="JID",
        ),
    ),
)
async def reject_person(call: Call, arguments: OfPerson) -> AccessDecision:
    """Withdraw the access of a person to an agent.

    JID is the address of the person. Their running answers are cancelled, and their waiting messages are not answered.

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
    decided = await (await call.host.open_agent(agent, changes=True)).access_requests.decide(person, is_admitted)
    return AccessDecision(agent, person, decided)


async def _check_key(call: Call, agent: str, address: str) -> None:
    """Raise ConfigError unless an address in the domain of callers is that of a key for an agent."""
    if (name := local_part(address)).startswith(WEBHOOK_PREFIX):
        webhook = name.removeprefix(WEBHOOK_PREFIX)
        raise ConfigError("person", f"{address} is a webhook; revoke it: `spade-coreason webhooks revoke {webhook}`")
    if address != key_of(address):
        raise ConfigError("person", f"{address} is one of the people of a key; reject the key: {key_of(address)}")
    key = None if call.host.database is None else await storage.KeyRepository(call.host.database).find(local_part(address))
    if key is None or agent not in (*key.agent_jids, *key.withdrawn_jids):
        raise ConfigError("person", f"there is no key {local_part(address)} for {agent}; see `spade-coreason keys list`")
