"""SASLprep (RFC 4013): what a client makes of a password before it logs in, and hence what has to be stored."""

from __future__ import annotations

import stringprep
import unicodedata

from ...exceptions import ServerError


def saslprep(password: str) -> str:
    """Raises ServerError for a password that no client could log in with."""
    kept = (" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(kept))
    if not prepared or any(stringprep.in_table_c21_c22(c) for c in prepared):
        raise ServerError("a password cannot be empty or contain control characters")
    return prepared
