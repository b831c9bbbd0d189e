"""Names of new agents: of the module, and of the account."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from functools import cache
from importlib.metadata import packages_distributions
from typing import NamedTuple

from ..exceptions import ConfigError

_FALLBACK = "my-agent"
_MAX_CHARACTERS = 40
# What a project contains, or what its files import by these names.
_TAKEN = frozenset(("agent", "agent_tester", "config", "conftest", "data", "spade", "spade_coreason", "tests"))
_find_distributions = cache(packages_distributions)  # it reads a file of each distribution


class AgentName(NamedTuple):
    """The name of an agent as a module, and as the local part of its JID."""

    module: str
    account: str

    @property
    def jid(self) -> str:
        """The JID on a local server."""
        return f"{self.account}@localhost"

    @property
    def class_name(self) -> str:
        """The name as that of a class."""
        return _class_name(self.module)


def check_name(name: str) -> str:
    """Return a name that was chosen for a module. Raise ConfigError if it cannot be one, or is taken."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError("--name", f'"{name}" is not a valid module name; use lower-case letters, digits and _')
    if _is_taken(name):
        raise ConfigError("--name", f'"{name}" is already the name of another module; choose a different one')
    return name


def derive_name(directory: str) -> AgentName:
    """Derive the name of an agent from that of its directory: `my-bot` gives `my_bot` and `my-bot`.

    Letters lose their accents, everything else becomes a dash. A name that would be no module gets a word more; one without
    any letter or digit of ASCII is replaced.
    """
    ascii_name = unicodedata.normalize("NFKD", directory).encode("ascii", "ignore").decode().lower()
    account = re.sub(r"[^a-z0-9_]+", "-", ascii_name)[:_MAX_CHARACTERS].strip("-_") or _FALLBACK
    if account[0].isdigit():
        account = f"agent-{account}"
    module = account.replace("-", "_")
    if keyword.iskeyword(module) or _is_taken(module):
        account, module = f"{account}-agent", f"{module}_agent"
    return AgentName(module, account)


def _class_name(module: str) -> str:
    return "".join(part.capitalize() for part in module.split("_")) or module


def _is_taken(module: str) -> bool:
    """Return True if a module of this name would hide another one, or a name that a project needs."""
    if module in sys.stdlib_module_names or module in _TAKEN or keyword.iskeyword(_class_name(module)):
        return True
    return module in _find_distributions()
