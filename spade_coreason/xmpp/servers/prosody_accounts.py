"""Prosody's accounts, as files in its data directory: what `prosodyctl register` writes, without its two drawbacks.

prosodyctl takes the password on its command line, where every user of the machine can read it, or from a terminal; and it
takes a fifth of a second an account. Prosody reads an account's file at each login, so that what is written here counts at
once, also while it runs. The format (SCRAM-SHA-1 keys in a Lua table) is that of `mod_auth_internal_hashed`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from .saslprep import saslprep

ITERATIONS = 10_000


def write(data: Path, user: str, domain: str, password: str) -> None:
    """Makes the account, or replaces its password."""
    path = _path(data, user, domain)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    salt = secrets.token_hex(18)
    salted = hashlib.pbkdf2_hmac("sha1", saslprep(password).encode(), salt.encode(), ITERATIONS)
    stored_key = hashlib.sha1(hmac.digest(salted, b"Client Key", "sha1")).hexdigest()
    server_key = hmac.digest(salted, b"Server Key", "sha1").hex()
    new = path.with_suffix(f".{secrets.token_hex(4)}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(
            "return {\n"
            f'\t["stored_key"] = "{stored_key}";\n'
            f'\t["server_key"] = "{server_key}";\n'
            f'\t["salt"] = "{salt}";\n'
            f'\t["iteration_count"] = {ITERATIONS};\n'
            "};\n"
        )
    new.replace(path)  # never half an account for Prosody to read


def exists(data: Path, user: str, domain: str) -> bool:
    return _path(data, user, domain).exists()


def delete(data: Path, user: str, domain: str) -> None:
    """Deletes the account's files of every kind: roster, offline messages, published items."""
    name = _encoded(user)
    for store in (data / _encoded(domain)).iterdir() if (data / _encoded(domain)).is_dir() else ():
        for path in (store / f"{name}.dat", store / f"{name}.list", store / f"{name}.lidx"):
            path.unlink(missing_ok=True)


def _path(data: Path, user: str, domain: str) -> Path:
    return data / _encoded(domain) / "accounts" / f"{_encoded(user)}.dat"


def _encoded(name: str) -> str:
    """As Prosody names its files: every byte that is no ASCII letter or digit as `%xx`."""
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02x}" for byte in name.encode())
