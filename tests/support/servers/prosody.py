"""A Prosody for tests, with its default limits, open registration, and an archive on request."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers.crowd import ComponentEndpoint
from tests.support.servers.server import DOMAIN, OTHER_DOMAIN, XmppServer

CONFIGURATION = """\
run_as_root = {as_root}
daemonize = false
pidfile = "{directory}/prosody.pid"
data_path = "{directory}/data"
certificates = "{directory}/certs"
interfaces = {{ "127.0.0.1" }}
local_interfaces = {{ "127.0.0.1" }}
use_ipv6 = false
c2s_ports = {{ {c2s} }}
c2s_direct_tls_ports = {{ }}
s2s_ports = {{ }}
http_ports = {{ {http} }}
http_interfaces = {{ "127.0.0.1" }}
https_ports = {{ }}
http_default_host = "localhost"
consider_websocket_secure = true
network_backend = "epoll"
storage = {{ archive = "{archive_storage}"; muc_log = "{archive_storage}" }}
sql = {{ driver = "SQLite3"; database = "{directory}/data/archive.sqlite" }}
sqlite_tune = "fast"
authentication = "internal_hashed"
default_iteration_count = 4096  -- the fewest that RFC 5802 allows; clients in Python take long for the default, 10000
c2s_require_encryption = true
allow_registration = {allow_registration}
log = {{ {{ levels = {{ min = "info" }}, to = "file", filename = "{directory}/prosody.log" }} }}
ssl = {{ key = "{key}"; certificate = "{certificate}" }}
modules_disabled = {{ "s2s"; {disabled} }}
modules_enabled = {{
  "disco"; "roster"; "saslauth"; "tls"; "carbons"; "pep"; "private"; "blocklist"; "vcard4"; "vcard_legacy"; "version";
  "time"; "ping"; "register"; "csi_simple"; "offline"; "websocket"; "posix"; "bookmarks"; "adhoc"; {modules}
}}
{options}
VirtualHost "{domain}"
VirtualHost "{other_domain}"
Component "muc.{domain}" "muc"
  restrict_room_creation = false
  {room_modules}
{uploads}
{crowd}
"""

UPLOADS = """\
Component "upload.{domain}" "http_file_share"
  http_host = "{domain}"
  http_external_url = "http://127.0.0.1:{http}/"
  http_file_share_size_limit = {size}
  http_file_share_daily_quota = {quota}
"""

CROWD = """\
Component "{crowd.host}"
  component_secret = "{crowd.secret}"
"""


def installed() -> bool:
    return shutil.which("prosody") is not None


def prosody(
    directory: Path,
    *,
    stanza_bytes: int | None = None,
    archive: bool = False,
    smacks: bool = True,
    hibernation_s: int | None = None,
    resumption_queue: int | None = None,
    max_unacked: int | None = None,
    max_upload_bytes: int | None = None,
    offline: bool = True,
    crowd: ComponentEndpoint | None = None,
    allow_registration: bool = True,
    other_domain: str = OTHER_DOMAIN,
    tuned: bool = False,
) -> XmppServer:
    """Prepare a server in `directory` without starting it: `with prosody(tmp_path) as server: …`. None is Prosody's default.

    stanza_bytes        The largest stanza (256 KiB).
    hibernation_s       The time in which a session can be resumed (600; XEP-0198).
    resumption_queue    The number of stanzas stored for its resumption (500).
    max_unacked         The number of stanzas sent before an acknowledgement is requested (0).
    max_upload_bytes    The largest uploaded file (XEP-0363). An account may upload ten of them a day.
    offline             Store messages for accounts that are offline.
    crowd               A crowd that may connect.
    allow_registration  Accept in-band registration (XEP-0077).
    other_domain        A second domain that it serves.
    tuned               Has the settings for many messages of docs/how-to/prosody.md.
    """
    certificate = ensure_certificate(directory / "certs", (DOMAIN, other_domain, f"muc.{DOMAIN}"))
    (directory / "data").mkdir(parents=True, exist_ok=True)
    c2s, http = find_free_ports(2)
    modules = [name for name, wanted in (("smacks", smacks), ("mam", archive)) if wanted]
    settings = {
        "c2s_stanza_size_limit": stanza_bytes,
        "smacks_hibernation_time": hibernation_s,
        "smacks_max_queue_size": resumption_queue,
        "smacks_max_unacked_stanzas": 50 if tuned else max_unacked,
        "gc": '{ mode = "generational" }' if tuned else None,
        "network_settings": "{ nagle = false }" if tuned else None,
        "component_ports": f"{{ {crowd.port} }}" if crowd else None,
    }
    configuration = directory / "prosody.cfg.lua"
    configuration.write_text(
        CONFIGURATION.format(
            as_root=str(os.getuid() == 0).lower(),
            allow_registration=str(allow_registration).lower(),
            directory=directory,
            c2s=c2s,
            http=http,
            archive_storage="sql" if archive else "memory",
            key=certificate.key,
            certificate=certificate.certificate,
            modules=" ".join(f'"{name}";' for name in modules),
            disabled="" if offline else '"offline";',
            options="\n".join(f"{key} = {value}" for key, value in settings.items() if value is not None),
            domain=DOMAIN,
            other_domain=other_domain,
            crowd=CROWD.format(crowd=crowd) if crowd else "",
            uploads=UPLOADS.format(domain=DOMAIN, http=http, size=max_upload_bytes, quota=10 * max_upload_bytes)
            if max_upload_bytes
            else "",
            room_modules='modules_enabled = { "muc_mam" }' if archive else "",
        )
    )
    return XmppServer(
        kind="prosody",
        port=c2s,
        http_port=http,
        directory=directory,
        certificate=certificate,
        command=("prosody", "--config", str(configuration), "-F"),
    )
