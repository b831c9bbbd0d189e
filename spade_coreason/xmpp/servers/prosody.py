"""The managed server: a private Prosody on loopback, with rooms, files, commands, archive and WebSocket."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ...domain.environment.private_files import replace_file
from ...exceptions import ServerError
from .certificate import CertificateFiles
from .process import START_TIMEOUT_S, LaunchSpec
from .server import DOMAIN, LocalServer, prepare_directory, run_server, saslprep

ROOMS_DOMAIN = f"muc.{DOMAIN}"
UPLOADS_DOMAIN = f"upload.{DOMAIN}"
ITERATIONS = 10_000

CONFIGURATION_TEMPLATE = """\
-- Written at every start: changes are lost.
run_as_root = {as_root}
daemonize = false
pidfile = {directory}.."/prosody.pid"
data_path = {directory}.."/data"
plugin_paths = {{ }}
interfaces = {{ "127.0.0.1" }}
local_interfaces = {{ "127.0.0.1" }}
use_ipv6 = false
c2s_ports = {{ {c2s} }}
c2s_direct_tls_ports = {{ }}
legacy_ssl_ports = {{ }}
s2s_ports = {{ }}
s2s_direct_tls_ports = {{ }}
component_ports = {{ }}
http_ports = {{ {http} }}
http_interfaces = {{ "127.0.0.1" }}
https_ports = {{ }}
http_default_host = "{domain}"
consider_websocket_secure = true  -- on loopback
c2s_require_encryption = true
authentication = "internal_hashed"
password_hash = "SHA-1"
allow_registration = false
storage = {{ archive = "{archive}"; muc_log = "{archive}" }}
sql = {{ driver = "SQLite3"; database = {directory}.."/data/archive.sqlite" }}
sqlite_tune = "fast"
archive_expires_after = "4w"
gc = {{ mode = "generational" }}  -- the default mode takes half of the time where many messages pass
network_settings = {{ nagle = false }}  -- else a small message waits until the one before it is acknowledged, 40 ms
smacks_max_queue_size = 5000  -- the default, 500, ends the resumption of a busy agent
smacks_max_unacked_stanzas = 50  -- the default, 0, asks after every stanza; by the archive an agent knows what comes again
ssl = {{ key = {key}; certificate = {certificate} }}
log = {{ {{ levels = {{ min = "warn" }}; to = "console"; timestamps = true }} }}
modules_disabled = {{ "s2s" }}
modules_enabled = {{
  "disco"; "roster"; "saslauth"; "tls"; "posix"; "adhoc"; "mam"; "smacks"; "carbons"; "pep"; "offline"; "private";
  "blocklist"; "vcard4"; "vcard_legacy"; "bookmarks"; "csi_simple"; "ping"; "time"; "version"; "websocket";
}}

VirtualHost "{domain}"
Component "{rooms}" "muc"
  modules_enabled = {{ "muc_mam" }}
  restrict_room_creation = "local"

Component "{uploads}" "http_file_share"
  http_host = "{domain}"
  http_external_url = "http://127.0.0.1:{http}/"
  http_file_share_size_limit = 100 * 1024 * 1024
  http_file_share_daily_quota = 1024 * 1024 * 1024
  http_file_share_expires_after = 4 * 7 * 24 * 3600
"""


@dataclass(frozen=True, slots=True)
class ProsodyServer(LocalServer):
    """A Prosody with closed registration: accounts are written to its data directory. All its data survives restarts."""

    kind = "prosody"
    registers_in_band = False

    data_dir: Path = Path()
    websocket_url: str = ""
    rooms_domain: str = ROOMS_DOMAIN

    async def create_account(self, jid: str, password: str) -> None:
        """Create the account, or set the password of an existing one."""
        await asyncio.to_thread(_write_account, self.data_dir, self.parse_user(jid), self.domain, password)


def find_prosody() -> str | None:
    """Return the path of Prosody, or None. It is not run: on Debian even `prosody --version` starts the system's server."""
    return shutil.which("prosody")


@asynccontextmanager
async def run_prosody_server(
    directory: Path,
    *,
    port: int | None = None,
    program: str | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> AsyncIterator[ProsodyServer]:
    """Run a private Prosody while the block runs. Its data, certificate, configuration and log are in `directory`.

    Without a `port` it uses the port of the last run, if that is still free. Raise ServerError with the reason if it does not
    start. Each attempt takes at most `timeout_s` seconds.
    """
    program = program or find_prosody()
    if program is None:
        raise ServerError("the program `prosody` is not on the PATH: `apt install prosody`, or choose another server")
    directory, certificate = await asyncio.to_thread(prepare_directory, directory, (DOMAIN, ROOMS_DOMAIN))
    (directory / "data").mkdir(exist_ok=True)
    archive = "sql" if await asyncio.to_thread(_has_sqlite, program) else "internal"
    configuration = directory / "prosody.cfg.lua"

    def start(ports: dict[str, int]) -> LaunchSpec:
        replace_file(configuration, _build_configuration(directory, certificate, ports, archive).encode())
        return LaunchSpec(
            name="Prosody",
            command=(program, "--config", str(configuration), "-F"),
            directory=directory,
            log=directory / "prosody.log",
            port=ports["c2s"],
            domain=DOMAIN,
            certificate=certificate,
        )

    async with run_server(start, directory, ("c2s", "http"), port, timeout_s) as (process, ports):
        yield ProsodyServer(
            port=ports["c2s"],
            ca_file=certificate.ca_file,
            process=process,
            data_dir=directory / "data",
            websocket_url=f"ws://127.0.0.1:{ports['http']}/xmpp-websocket",
            files_url=f"http://127.0.0.1:{ports['http']}/file_share/",
        )


def _write_account(data_dir: Path, user: str, domain: str, password: str) -> None:
    """Write the account's file, in the format of Prosody's `internal_hashed` authentication."""
    path = data_dir / _encode_name(domain) / "accounts" / f"{_encode_name(user)}.dat"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    salt = secrets.token_hex(18)
    salted = hashlib.pbkdf2_hmac("sha1", saslprep(password).encode(), salt.encode(), ITERATIONS)
    stored_key = hashlib.sha1(hmac.digest(salted, b"Client Key", "sha1")).hexdigest()
    server_key = hmac.digest(salted, b"Server Key", "sha1").hex()
    text = (
        "return {\n"
        f'\t["stored_key"] = "{stored_key}";\n'
        f'\t["server_key"] = "{server_key}";\n'
        f'\t["salt"] = "{salt}";\n'
        f'\t["iteration_count"] = {ITERATIONS};\n'
        "};\n"
    )
    replace_file(path, text.encode("ascii"))  # Prosody must never read half an account


def _encode_name(name: str) -> str:
    """Encode a name the way Prosody names its files: every byte except ASCII letters and digits becomes `%xx`."""
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02x}" for byte in name.encode())


def _build_configuration(directory: Path, certificate: CertificateFiles, ports: dict[str, int], archive_storage: str) -> str:
    return CONFIGURATION_TEMPLATE.format(
        as_root=str(os.getuid() == 0).lower(),  # Prosody runs as root only with this option, and as others only without it
        directory=_lua_string(directory),
        key=_lua_string(certificate.key),
        certificate=_lua_string(certificate.certificate),
        archive=archive_storage,
        domain=DOMAIN,
        rooms=ROOMS_DOMAIN,
        uploads=UPLOADS_DOMAIN,
        **ports,
    )


def _lua_string(path: Path) -> str:
    """Quote a path, with any characters in it, as a Lua string."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def _has_sqlite(program: str) -> bool:
    """Return True if this Prosody's Lua has SQLite.

    Prosody's own storage becomes slow as the archive grows (36 messages/s after 10,000 messages).
    """
    try:
        with open(program, "rb") as file:
            shebang = file.readline(200)
        if not shebang.startswith(b"#!") or b"lua" not in shebang:
            return False
        command = [*shebang[2:].decode().split(), "-e", 'require "DBI"; require "dbd.sqlite3"']
        return subprocess.run(command, capture_output=True, timeout=5.0, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
