"""The addresses of callers: those who ask agents by a door, with a key.

They are in a domain that no server can have (RFC 2606, 2), so that nothing that is sent can reach it, and nothing that comes
from a server may be from it. It is refused wherever a person, an agent, a room or a domain is named.
"""

from __future__ import annotations

import hashlib
import stringprep
import unicodedata
from functools import lru_cache

from .jid import bare_jid, jid_domain, local_part

CALLERS_DOMAIN = "callers.invalid"
WEBHOOK_PREFIX = "hook-"
"""The beginning of the names of callers that are webhooks."""

CALLER_REMEDY = "callers of doors get access by a key: spade-coreason keys create"

CALLER_IS_NO_AGENT = "was not asked: this is the address of a caller of a door, which is no agent; name another agent"

HIDDEN_PERSON = "hidden"
"""The root sender of a request of an agent that must not name the person behind its own. It is no JID, so it names no one."""

_IDEOGRAPHIC_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")  # RFC 3490, 3.1
_IGNORED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})


def is_caller_domain(domain: str) -> bool:
    """Return True if a domain is that of callers, or below it, in any spelling that some software may take for it.

    That is: other case, width and dots, characters that IDNA drops (RFC 3454, B.1), labels of the form `xn--…`, dots at both
    ends.
    """
    name = _fold(domain).rpartition("@")[2].partition("/")[0]
    name = _fold(".".join(_decode_label(label) for label in name.split("."))).strip(".")
    return name == CALLERS_DOMAIN or name.endswith(f".{CALLERS_DOMAIN}")


@lru_cache(maxsize=4096)  # asked of every stanza
def is_caller(jid: str) -> bool:
    """Return True if a JID is in the domain of callers."""
    return is_caller_domain(jid_domain(jid))


def refuse_caller(address: str) -> str:
    """Return an address or a domain of someone else. ValueError, with the remedy, for one in the domain of callers."""
    if is_caller(address):
        raise ValueError(f'"{address}" is in {CALLERS_DOMAIN}, where no account can be; {CALLER_REMEDY}')
    return address


def caller_address(key: str) -> str:
    """Return the address (a bare JID) of those who use the key of a name."""
    return f"{key}@{CALLERS_DOMAIN}"


def webhook_address(webhook: str) -> str:
    """Return the address (a bare JID) of what comes by the webhook of a name. No key has a name that begins as these do."""
    return caller_address(f"{WEBHOOK_PREFIX}{webhook}")


def person_below(key: str, user: str) -> str:
    """Return the address (a bare JID) of one of the people for whom a front end uses its key, as it names them.

    The name is hashed: it may be any text, and two of them must not be one person.
    """
    return f"{hashlib.sha256(user.encode()).hexdigest()[:32]}.{caller_address(key)}"


def key_of(address: str) -> str:
    """Return the address of the key itself, for that of a caller or of a person below it."""
    return caller_address(local_part(bare_jid(address)).rpartition(".")[2])


def _fold(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text.lower().strip()
    text = unicodedata.normalize("NFKC", text.translate(_IDEOGRAPHIC_DOTS)).casefold()
    text = unicodedata.normalize("NFKC", text).translate(_IDEOGRAPHIC_DOTS)
    return "".join(letter for letter in text if not _is_ignored(letter))


def _is_ignored(letter: str) -> bool:
    return stringprep.in_table_b1(letter) or unicodedata.category(letter) in _IGNORED_CATEGORIES


def _decode_label(label: str) -> str:
    """Return what a label of the form `xn--…` stands for, even if it is no valid one."""
    for _ in range(4):  # a label in a label in a label
        if not label.startswith("xn--"):
            break
        try:
            label = _fold(label.removeprefix("xn--").encode("ascii", "ignore").decode("punycode"))
        except UnicodeError:
            break
    return label
