"""The accounts on the server that a platform runs itself: those of its agents and of a guest, with their passwords (0600)."""

from __future__ import annotations

import json
import secrets

import aiofiles

from ..config import Settings, write_private_json
from ..domain.jid import bare_jid
from ..exceptions import ConfigError
from ..xmpp import LocalServer

GUEST_USER = "guest"


class LocalAccounts:
    """The accounts of a local server, and their passwords: those of the configuration, else of the last run, else new ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file = settings.data_dir / "accounts.json"
        self._stored: dict[str, str] = {}
        """The passwords of the file, by bare JID; also those of agents that are no longer configured."""
        self.passwords: dict[str, str] = {}
        """The passwords of the agents and the guest, by bare JID."""

    async def choose_passwords(self, guest: str) -> None:
        """Choose the passwords of the agents and of the guest (a bare JID). Raise ConfigError if the file cannot be read."""
        self._stored = await self._load()
        configured = {guest: None} | {bare_jid(agent.jid): agent.password for agent in self._settings.agents}
        for jid, password in configured.items():
            given = None if password is None else password.get_secret_value()
            self.passwords[jid] = given or self._stored.get(jid) or secrets.token_urlsafe(24)

    async def create(self, server: LocalServer) -> None:
        """Store the passwords, and create the accounts that the server does not have."""
        await write_private_json(self._file, {**self._stored, **self.passwords})
        for jid, password in self.passwords.items():
            await server.create_account(jid, password)

    async def _load(self) -> dict[str, str]:
        try:
            async with aiofiles.open(self._file, encoding="utf-8") as file:
                passwords = json.loads(await file.read())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(str(self._file), f"is not JSON ({error}); delete it to generate new passwords") from error
        if not isinstance(passwords, dict):
            raise ConfigError(str(self._file), "contains no accounts; delete it to generate new passwords")
        return passwords
