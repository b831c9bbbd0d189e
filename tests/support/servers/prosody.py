"""A Prosody for tests, with its default limits, open registration, and an archive on request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spade_coreason.xmpp.connection.resolver import to_ascii
from spade_coreason.xmpp.servers.certificate import CertificateFiles, ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers.crowd import ComponentEndpoint
from tests.support.servers.requirements import find_program
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
c2s_direct_tls_ports = {{ {c2s_tls} }}
s2s_ports = {{ {s2s_port} }}
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
c2s_require_encryption = {requires_tls}
allow_registration = {allow_registration}
log = {{ {{ levels = {{ min = "info" }}, to = "file", filename = "{directory}/prosody.log" }} }}
ssl = {{ key = "{key}"; certificate = "{certificate}" }}
modules_disabled = {{ {disabled} }}
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

FEDERATION = """\
s2s_secure_auth = true
s2s_ssl = {{ cafile = "{federation.ca_file}" }}
s2s_peer_ports = {{ {ports} }}
smacks_s2s_resend = {resends}
plugin_paths = {{ "{directory}" }}
"""

# Every other domain has no server, and no name is looked up in the DNS.
PEER_PORTS_MODULE = """\
module:set_global();
local service = require "net.resolvers.service";
local manual = require "net.resolvers.manual";
local ports = module:get_option("s2s_peer_ports");
function service.new(hostname, name, conn_type, extra)
	local port = name == "xmpp-server" and ports[hostname];
	return manual.new(port and { { "tcp4", "127.0.0.1", port, extra } } or {}, conn_type, extra);
end
"""

CROWD = """\
Component "{crowd.host}"
  component_secret = "{crowd.secret}"
"""


@dataclass(frozen=True, slots=True)
class Federation:
    """The connections of a server to others (s2s). Certificates are verified in both directions."""

    port: int
    """The port for connections of other servers."""
    peer_ports: Mapping[str, int]
    """The port of each other domain. No further domain is reached."""
    ca_file: Path
    """The authorities of the other servers."""
    resends: bool = False
    """True to send unacknowledged messages again after a cut. Otherwise they bounce."""


def installed() -> bool:
    return find_program("prosody") is not None


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
    domain: str = DOMAIN,
    other_domain: str = OTHER_DOMAIN,
    tuned: bool = False,
    federation: Federation | None = None,
    requires_tls: bool = True,
    certificate: CertificateFiles | None = None,
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
    domain              The domain that it serves.
    other_domain        A second domain that it serves.
    tuned               Has the settings for many messages of docs/how-to/prosody.md.
    federation          Its connections to other servers.
    requires_tls        Accept no login without TLS.
    certificate         Its certificate; otherwise a new one of its domains.
    """
    is_trusted = certificate is None
    names = tuple(map(to_ascii, (domain, other_domain, f"muc.{domain}")))
    certificate = certificate or ensure_certificate(directory / "certs", names)
    (directory / "data").mkdir(parents=True, exist_ok=True)
    c2s, c2s_tls, http = find_free_ports(3)
    if federation:
        (directory / "mod_peer_ports.lua").write_text(PEER_PORTS_MODULE)
    modules = [name for name, wanted in (("smacks", smacks), ("mam", archive), ("peer_ports", federation)) if wanted]
    disabled = [name for name, wanted in (("s2s", federation), ("offline", offline)) if not wanted]
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
            c2s_tls=c2s_tls,
            requires_tls=str(requires_tls).lower(),
            http=http,
            archive_storage="sql" if archive else "memory",
            key=certificate.key,
            certificate=certificate.certificate,
            modules=" ".join(f'"{name}";' for name in modules),
            s2s_port=federation.port if federation else "",
            disabled=" ".join(f'"{name}";' for name in disabled),
            options="\n".join(f"{key} = {value}" for key, value in settings.items() if value is not None)
            + (_federation_options(federation, directory) if federation else ""),
            domain=domain,
            other_domain=other_domain,
            crowd=CROWD.format(crowd=crowd) if crowd else "",
            uploads=UPLOADS.format(domain=domain, http=http, size=max_upload_bytes, quota=10 * max_upload_bytes)
            if max_upload_bytes
            else "",
            room_modules='modules_enabled = { "muc_mam" }' if archive else "",
        )
    )
    return XmppServer(
        kind="prosody",
        port=c2s,
        direct_tls_port=c2s_tls,
        http_port=http,
        directory=directory,
        certificate=certificate,
        is_trusted=is_trusted,
        command=("prosody", "--config", str(configuration), "-F"),
        domain=domain,
    )


def _federation_options(federation: Federation, directory: Path) -> str:
    ports = " ".join(f'["{domain}"] = {port};' for domain, port in federation.peer_ports.items())
    return "\n" + FEDERATION.format(
        federation=federation, ports=ports, directory=directory, resends=str(federation.resends).lower()
    )
