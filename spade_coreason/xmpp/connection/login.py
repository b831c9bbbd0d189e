"""The account of a session."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Login:
    """The account with which a session begins. With `register` it is first registered in-band (XEP-0077)."""

    jid: str
    """Without a resource the server chooses one."""
    password: str = field(repr=False)
    register: bool = False
