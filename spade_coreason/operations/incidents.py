"""Show the exceptions behind incidents: failures that a person was told of by a number."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from .. import storage
from ..contracts.times import format_rfc3339
from ..domain.texts.error_chain import dump_error_chain, find_frame, format_frame, load_error_chain
from ..exceptions import ConfigError
from .definition import Call, OfAgents, operation
from .host import OperationHost, stored_agents
from .lists import Limit, Page, load_newest, raise_missing
from .view import TableView, View, moment


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


class ListIncidents(Page):
    """A page of incidents."""

    limit: Limit = 20


def _find_place(one: IncidentContents) -> str:
    return format_frame(find_frame(load_error_chain(one.errors)))


def _dump(one: IncidentContents, *, has_texts: bool = False) -> dict[str, Any]:
    errors = [
        {
            "type": error.type,
            "relation": error.relation or None,
            **({"message": error.text} if has_texts else {}),
            "frames": [frame._asdict() for frame in error.frames],
            "omitted_frames": error.omitted,
        }
        for error in load_error_chain(one.errors)
    ]
    return {**asdict(one), "errors": errors}


@operation(
    "incidents.list",
    view=View(
        table=TableView(
            "incidents",
            cursor="id",
            columns=[
                "id",
                ("agent", "agent_id"),
                ("time", moment("occurred_at")),
                ("type", lambda one: load_error_chain(one.errors)[-1].short_type),
                ("place", _find_place),
            ],
        ),
        dump=lambda found: list(map(_dump, found)),
        links=["incidents.show", "incidents.messages"],
    ),
)
async def list_incidents(call: Call, arguments: ListIncidents) -> list[IncidentContents]:
    """List the newest incidents, the newest first."""
    return list(map(_contents, await load_newest(call.host, storage.IncidentRepository, "incident", arguments)))


class OfIncident(OfAgents):
    """An incident, by its number or by a text that has the number."""

    id: str


@operation("incidents.show", view=View(dump=_dump))
async def show_incident(call: Call, arguments: OfIncident) -> IncidentContents:
    """Show an incident without the messages of its exceptions, which may quote a person."""
    return _contents(await _find(call.host, arguments))


@operation("incidents.messages", is_change=True, view=View(dump=lambda one: _dump(one, has_texts=True), role="content"))
async def show_incident_messages(call: Call, arguments: OfIncident) -> IncidentContents:
    """Show an incident with the messages of its exceptions. The trail has an entry of it."""
    found = await _find(call.host, arguments)
    await call.record(found.agent, "incidents.messages", f"incident {found.incident}", person=found.person)
    with_texts = await call.host.repository(found.agent).incidents.find_with_texts(found.id)
    if with_texts is None or with_texts.incident != found.incident:
        raise ConfigError("id", f"incident {found.incident} was deleted a moment ago")
    return _contents(with_texts)


async def _find(host: OperationHost, arguments: OfIncident) -> storage.Incident:
    agents = await stored_agents(host, arguments.agent)
    for number in re.findall(r"\b[0-9a-f]{8}\b", arguments.id.lower()):  # also in "incident 1F2E3D4C", or in all that was told
        if host.database is not None:
            for found in await storage.IncidentRepository(host.database, "").load_page(agent=agents, incident=number):
                return found
    raise_missing(f'"{arguments.id}"', "incident")


def _contents(incident: storage.Incident) -> IncidentContents:
    return IncidentContents(
        incident.incident,
        incident.agent,
        incident.person,
        incident.conversation_id,
        format_rfc3339(storage.from_micros(incident.occurred_at)),
        dump_error_chain(incident.chain),
    )
