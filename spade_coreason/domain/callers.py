"""The addresses of callers: those who ask agents by a door, with a key.

They are in a domain that no server can have (RFC 2606, 2). So nothing that is sent can reach it, and nothing that comes from a
server may be from it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from functools import lru_cache

from .jid import bare_jid, jid_domain, local_part

CALLERS_DOMAIN = "callers.invalid"


@lru_cache(maxsize=4096)  # asked for each message
def is_caller_domain(domain: str) -> bool:
    """Return True if a domain is that of callers, or below it, in any spelling that someone might read as it."""
    name = unicodedata.normalize("NFKC", domain).lower().strip().strip(".").replace("。", ".")
    return name == CALLERS_DOMAIN or name.endswith(f".{CALLERS_DOMAIN}")


def is_caller(jid: str) -> bool:
    """Return True if a JID is in the domain of callers."""
    return is_caller_domain(jid_domain(jid))


def caller_address(key: str) -> str:
    """Return the address (a bare JID) of those who use the key of a name."""
    return f"{key}@{CALLERS_DOMAIN}"


def person_below(key: str, user: str) -> str:
    """Return the address (a bare JID) of one of the people for whom a front end uses its key, as it names them.

    The name is hashed: it may be any text, and two of them must not be one person.
    """
    return f"{hashlib.sha256(user.encode()).hexdigest()[:32]}.{caller_address(key)}"


def key_of(address: str) -> str:
    """Return the address of the key itself, for that of a caller or of a person below it."""
    return caller_address(local_part(bare_jid(address)).rpartition(".")[2])
