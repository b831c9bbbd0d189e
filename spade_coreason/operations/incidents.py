"""The operations on incidents: failures that a person was told of by a number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from ..contracts.base import format_rfc3339
from ..domain.texts.error_chain import dump_error_chain
from ..exceptions import ConfigError
from ..storage import Incident, load_incident_with_texts, load_incidents, load_newest_incidents
from .definition import Arguments, Call, operation
from .host import OperationHost, select_agents


@dataclass(frozen=True, slots=True)
class IncidentContents:
    """An incident with its chain of exceptions. `occurred_at` is as in RFC 3339.

    `errors` has the form of `domain.texts.error_chain.dump_error_chain`. The texts in it are empty unless they were asked for.
    """

    id: str
    agent_id: str
    person: str
    conversation_id: str | None
    occurred_at: str
    errors: list[dict[str, Any]]


class ListIncidents(Arguments):
    """The number of incidents, the newest of these agents."""

    agent: str | None = None
    limit: int = Field(20, ge=1)


@operation("incidents.list")
async def list_incidents(call: Call, arguments: ListIncidents) -> list[IncidentContents]:
    """List the newest incidents, the newest first."""
    agents = await select_agents(call.host, arguments.agent)
    database = call.host.database
    found = [] if database is None else await load_newest_incidents(database, agents, arguments.limit)
    return list(map(_contents, found))


class OfIncident(Arguments):
    """An incident, by its number or by a text that has the number."""

    id: str
    agent: str | None = None


@operation("incidents.show")
async def show_incident(call: Call, arguments: OfIncident) -> IncidentContents:
    """Show an incident without the messages of its exceptions, which may quote a person."""
    return _contents(await _find(call.host, arguments))


@operation("incidents.messages", is_change=True)
async def show_incident_messages(call: Call, arguments: OfIncident) -> IncidentContents:
    """Show an incident with the messages of its exceptions. The trail has an entry of it."""
    found = await _find(call.host, arguments)
    repository = call.host.repository(found.agent)
    await call.record(found.agent, "incidents.messages", f"incident {found.number}", person=found.person)
    with_texts = await load_incident_with_texts(repository.database, found.agent, found.row)
    if with_texts is None or with_texts.number != found.number:
        raise ConfigError("id", f"incident {found.number} was deleted a moment ago")
    return _contents(with_texts)


async def _find(host: OperationHost, arguments: OfIncident) -> Incident:
    numbers = re.findall(r"\b[0-9a-f]{8}\b", arguments.id.lower())  # also in "incident 1F2E3D4C", or in all that was told
    agents = await select_agents(host, arguments.agent)
    if numbers and host.database is not None:
        for incident in await load_incidents(host.database, agents, numbers):
            return incident
    raise ConfigError("id", f'there is no incident "{arguments.id}"; `spade-coreason incident` lists the newest')


def _contents(incident: Incident) -> IncidentContents:
    return IncidentContents(
        incident.number,
        incident.agent,
        incident.person,
        incident.conversation_id,
        format_rfc3339(incident.occurred_at),
        dump_error_chain(incident.chain),
    )
