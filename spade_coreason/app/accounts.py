"""The accounts on the server that a platform runs itself: those of its agents and of people, with their passwords (0600)."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import aiofiles

from ..config import Settings, write_private_json
from ..domain.jid import bare_jid
from ..exceptions import ConfigError
from ..xmpp import LocalServer

GUEST_USER = "guest"
PEOPLE_FILE = "people.json"
"""The name of the file with the passwords of `server.people`, in the data directory."""


class LocalAccounts:
    """The accounts of a local server, and their passwords: those of the configuration, else of the last run, else new ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file = settings.data_dir / "accounts.json"
        self._people_file = settings.data_dir / PEOPLE_FILE
        self._stored: dict[str, str] = {}
        """The passwords of the file, by bare JID; also those of agents that are no longer configured."""
        self.passwords: dict[str, str] = {}
        """The passwords of the agents and the guest, by bare JID."""
        self._people: dict[str, str] = {}
        """The passwords of further people (`server.people`)."""

    async def choose_passwords(self, guest: str) -> None:
        """Choose the passwords of the agents, of the guest (a bare JID) and of further people.

        Raise ConfigError if a file cannot be read.
        """
        self._stored = await _load(self._file)
        people = await _load(self._people_file) if self._settings.server.people else {}
        self._people = {jid: people.get(jid) or secrets.token_urlsafe(24) for jid in self._settings.server.people}
        configured = {guest: None} | {bare_jid(agent.jid): agent.password for agent in self._settings.agents}
        for jid, password in configured.items():
            given = None if password is None else password.get_secret_value()
            self.passwords[jid] = given or self._stored.get(jid) or secrets.token_urlsafe(24)

    async def create(self, server: LocalServer) -> None:
        """Store the passwords, and create the accounts that the server does not have."""
        await write_private_json(self._file, {**self._stored, **self.passwords})
        if self._people:
            await write_private_json(self._people_file, self._people)
        for jid, password in {**self.passwords, **self._people}.items():
            await server.create_account(jid, password)


async def _load(path: Path) -> dict[str, str]:
    try:
        async with aiofiles.open(path, encoding="utf-8") as file:
            passwords = json.loads(await file.read())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(str(path), f"is not JSON ({error}); delete it to generate new passwords") from error
    if not isinstance(passwords, dict):
        raise ConfigError(str(path), "contains no accounts; delete it to generate new passwords")
    return passwords
