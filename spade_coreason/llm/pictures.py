"""The pictures of people as a language model is shown them: which are fetched, and why others are not."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from mimetypes import guess_type
from types import MappingProxyType
from typing import Any
from uuid import UUID

from ..contracts import Interaction
from ..domain.avatar import recognise_picture
from ..domain.texts.translation import N_, translate
from ..exceptions import FetchError
from ..runtime import FetchFile
from .options import Pictures

log = logging.getLogger(__name__)

_MAX_NAME_CHARACTERS = 80
_TOO_MANY = N_("there are too many pictures")
_SWITCHED_OFF = N_("I am not set up to look at pictures")
_NO_PICTURE = N_("it is not a PNG, JPEG, WebP or GIF")


@dataclass(frozen=True, slots=True)
class LoadedPictures:
    """The pictures of a turn and of those before it."""

    shown: Mapping[UUID | None, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """The shown ones as data URLs (RFC 2397) by link, for each turn by its id; for the request by None."""
    problems: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The reasons why others of the request are not shown, by link."""
    notices: Sequence[str] = ()
    """Lines for the person about those, translated."""


NO_PICTURES = LoadedPictures()


def find_attachments(payload: Any) -> list[Mapping[str, Any]]:
    """Return the attachments of a payload that have a link. A program may send anything in their place."""
    found = payload.get("attachments") if isinstance(payload, Mapping) else None
    if not isinstance(found, list):
        return []
    return [one for one in found if isinstance(one, Mapping) and isinstance(one.get("url"), str)]


class PictureLoader:
    """Fetch the pictures of an agent's turns. `options` are None if they are off; then the log says so, if `has_notice`."""

    def __init__(self, agent: str, options: Pictures | None, fetch: FetchFile, *, has_notice: bool) -> None:
        self._agent = agent
        self._options = options
        self._fetch = fetch
        self._has_notice = has_notice

    async def load(self, payload: Mapping[str, Any], window: Sequence[Interaction]) -> LoadedPictures:
        """Load the pictures of a request, and those of the newest turns before it. `window` has the oldest turn first."""
        own = list(_find_candidates(payload)) if "attachments" in payload else []
        options = self._options
        if options is None:
            return self._refuse(own) if own else NO_PICTURES
        turns = [turn for turn in window if not turn.meta.get("summary")]
        places: dict[str, tuple[UUID | None, Mapping[str, Any]]] = {one["url"]: (None, one) for one in own}
        for turn in reversed(turns[max(0, len(turns) - options.turns) :]):
            for one in _find_candidates(turn.input):
                places.setdefault(one["url"], (turn.interaction_id, one))  # a link is shown once, where it is newest
        if not places:
            return NO_PICTURES
        chosen = list(places)[: options.number]
        results = await asyncio.gather(*(self._load(url, places[url][1], options) for url in chosen))
        shown: dict[UUID | None, dict[str, str]] = {}
        problems = {one["url"]: _TOO_MANY for one in own if one["url"] not in chosen}
        bytes_left = options.max_bytes
        for url, (data_url, problem) in zip(chosen, results, strict=True):
            size = len(data_url.partition(",")[2].rstrip("=")) * 3 // 4
            if problem:
                problems[url] = problem
            elif size > bytes_left:
                problems[url] = N_("with the others it has more than {number} bytes", number=f"{options.max_bytes:,}")
            elif data_url:
                shown.setdefault(places[url][0], {})[url] = data_url
                bytes_left -= size
        return self._report(own, shown, problems)

    async def _load(self, url: str, attachment: Mapping[str, Any], options: Pictures) -> tuple[str, str]:
        """Return the data URL of the picture, and why there is none. Both are empty for a file that claims nothing."""
        try:
            file = await self._fetch(
                url, max_bytes=options.max_bytes, timeout_s=options.timeout_s, allow_private=options.allow_private
            )
        except FetchError as error:
            log.debug("%s: %s", self._agent, error)
            if self._has_notice:
                self._has_notice = False
                remedy = "if your server for uploads has a private address, name its network in options.pictures.allow_private"
                log.warning("%s: a picture cannot be fetched, so the model is not shown it; %s", self._agent, remedy)
            return "", error.problem
        kind = recognise_picture(file.data)
        if kind is None:
            return "", _NO_PICTURE if _claims_picture(attachment) else ""
        return f"data:{kind};base64,{b64encode(file.data).decode()}", ""

    def _refuse(self, own: Sequence[Mapping[str, Any]]) -> LoadedPictures:
        claimed = [one for one in own if _claims_picture(one)]
        if claimed and self._has_notice:
            self._has_notice = False
            remedy = "set options.pictures to true if it takes images, else to false"
            log.warning("%s: a person sent a picture, which the model is not shown; %s", self._agent, remedy)
        return self._report(claimed, {}, {one["url"]: _SWITCHED_OFF for one in claimed})

    def _report(
        self,
        own: Sequence[Mapping[str, Any]],
        shown: Mapping[UUID | None, Mapping[str, str]],
        all_problems: Mapping[str, str],
    ) -> LoadedPictures:
        problems = {one["url"]: all_problems[one["url"]] for one in own if one["url"] in all_problems}
        names = {one["url"]: _name_of(one) for one in own}
        notices = [
            translate("My language model does not see {name}: {problem}.", name=names[url], problem=translate(problem))
            for url, problem in problems.items()
        ]
        return LoadedPictures(shown, problems, notices)


def _find_candidates(payload: Any) -> Iterator[Mapping[str, Any]]:
    """Find the attachments that may be pictures: those that claim to be one, and those that claim nothing."""
    return (one for one in find_attachments(payload) if _claims_picture(one) or not _claimed_type(one))


def _claims_picture(attachment: Mapping[str, Any]) -> bool:
    return _claimed_type(attachment).startswith("image/")


def _claimed_type(attachment: Mapping[str, Any]) -> str:
    """Return the media type that the sender names, else that of the name. Both are claims."""
    if isinstance(kind := attachment.get("type"), str) and kind:
        return kind.lower()
    name = attachment.get("name")
    shown = name if isinstance(name, str) else attachment["url"].partition("?")[0]
    return guess_type(shown.rpartition("/")[2])[0] or ""  # Python 3.13 raises for an address that cannot be parsed


def _name_of(attachment: Mapping[str, Any]) -> str:
    name = attachment.get("name")
    return " ".join(name.split())[:_MAX_NAME_CHARACTERS] if isinstance(name, str) and name.strip() else translate("the picture")
