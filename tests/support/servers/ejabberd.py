"""An ejabberd for tests: without Erlang's distribution, so that nothing listens beyond loopback; Debian's stanza limit."""

from __future__ import annotations

import os
from pathlib import Path

from spade_coreason.xmpp.servers.certificate import CertificateFiles, ensure_certificate
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers.crowd import ComponentEndpoint
from tests.support.servers.requirements import find_program
from tests.support.servers.server import DOMAIN, OTHER_DOMAIN, XmppServer

DEBIAN_STANZA_BYTES = 262_144

CONFIGURATION = """\
hosts: ["{domain}", "{other_domain}"]
loglevel: warning
certfiles: ["{pem}"]
listen:
  - {{port: {c2s}, ip: "127.0.0.1", module: ejabberd_c2s, starttls: true, starttls_required: true,
     max_stanza_size: {stanza_bytes}, shaper: none, access: c2s}}
  - {{port: {c2s_tls}, ip: "127.0.0.1", module: ejabberd_c2s, tls: true, shaper: none, access: c2s}}
  - {{port: {http}, ip: "127.0.0.1", module: ejabberd_http,
     request_handlers: {{/ws: ejabberd_http_ws{upload_handler}}}}}
{crowd}
acl: {{local: {{user_regexp: ""}}}}
access_rules: {{local: {{allow: local}}, c2s: {{allow: all}}, register: {{{allow_registration}: all}}}}
auth_method: internal
auth_password_format: scram
registration_timeout: infinity
max_fsm_queue: 100000
s2s_access: none
default_db: mnesia
modules:
  mod_adhoc: {{}}
  mod_blocking: {{}}
  mod_caps: {{}}
  mod_carboncopy: {{}}
  mod_client_state: {{}}
  mod_disco: {{}}
  mod_last: {{}}
  mod_muc: {{host: "muc.@HOST@", access: all, access_create: all, max_users: 2000, default_room_options: {{max_users: 2000}}}}
  mod_ping: {{}}
  mod_privacy: {{}}
  mod_private: {{}}
  mod_pubsub: {{host: "pubsub.@HOST@", access_createnode: all, plugins: [flat, pep]}}
  mod_register: {{access: register, ip_access: all, password_strength: 0}}
  mod_roster: {{versioning: true}}
  mod_vcard: {{}}
  mod_version: {{}}
{modules}
"""


CROWD = """\
  - {{port: {crowd.port}, ip: "127.0.0.1", module: ejabberd_service, access: all, shaper: none,
     hosts: {{"{crowd.host}": {{password: "{crowd.secret}"}}}}}}
"""


def installed() -> bool:
    return _program() is not None and find_program("erl") is not None


def ejabberd(
    directory: Path,
    *,
    stanza_bytes: int = DEBIAN_STANZA_BYTES,
    archive: bool = False,
    smacks: bool = True,
    hibernation_s: int = 300,
    max_unacked: int = 5000,
    max_upload_bytes: int | None = None,
    offline: bool = True,
    crowd: ComponentEndpoint | None = None,
    allow_registration: bool = True,
    other_domain: str = OTHER_DOMAIN,
    certificate: CertificateFiles | None = None,
) -> XmppServer:
    """Prepare a server in `directory` without starting it: `with ejabberd(tmp_path) as server: …`.

    max_unacked         The number of unacknowledged stanzas with which it ends a stream. The default is its own.
    max_upload_bytes    The largest uploaded file (XEP-0363).
    offline             Store messages for accounts that are offline.
    crowd               A crowd that may connect.
    allow_registration  Accept in-band registration (XEP-0077).
    other_domain        A second domain that it serves.
    certificate         Its certificate; otherwise a new one of its domains.
    """
    domains = [prefix + domain for domain in (DOMAIN, other_domain) for prefix in ("", "muc.", "pubsub.", "upload.")]
    is_trusted = certificate is None
    certificate = certificate or ensure_certificate(directory / "certs", domains)
    database = directory / "db"
    database.mkdir(parents=True, exist_ok=True)
    pem = directory / "ejabberd.pem"
    pem.touch(mode=0o600)
    pem.write_bytes(certificate.certificate.read_bytes() + certificate.key.read_bytes())
    c2s, c2s_tls, http = find_free_ports(3)
    modules = []
    if offline:
        modules.append("  mod_offline: {access_max_user_messages: 5000}")
    if smacks:
        queue = f"resume_timeout: {hibernation_s}, max_ack_queue: {max_unacked}"
        modules.append(f"  mod_stream_mgmt: {{resend_on_timeout: if_offline, {queue}}}")
    if archive:
        modules.append("  mod_mam: {default: always, assume_mam_usage: true}")
    if max_upload_bytes:
        paths = f'put_url: "http://127.0.0.1:{http}/upload/@HOST@", docroot: "{directory}/upload/@HOST@"'
        modules.append(f"  mod_http_upload: {{{paths}, max_size: {max_upload_bytes}, access: local}}")
    configuration = directory / "ejabberd.yml"
    configuration.write_text(
        CONFIGURATION.format(
            domain=DOMAIN,
            other_domain=other_domain,
            pem=pem,
            c2s=c2s,
            c2s_tls=c2s_tls,
            http=http,
            stanza_bytes=stanza_bytes,
            allow_registration="allow" if allow_registration else "deny",
            crowd=CROWD.format(crowd=crowd) if crowd else "",
            upload_handler=", /upload: mod_http_upload" if max_upload_bytes else "",
            modules="\n".join(modules),
        )
    )
    # `+K true` is epoll. Without `-sname` there is no distribution, hence no epmd and no port for it.
    command = ("erl", "-noinput", "+K", "true", "+P", "250000", "-mnesia", "dir", f'"{database}"', "-s", "ejabberd")
    return XmppServer(
        kind="ejabberd",
        port=c2s,
        direct_tls_port=c2s_tls,
        http_port=http,
        directory=directory,
        certificate=certificate,
        is_trusted=is_trusted,
        command=command,
        environment={
            "EJABBERD_CONFIG_PATH": str(configuration),
            "EJABBERD_LOG_PATH": str(directory / "ejabberd.log"),
            "EJABBERD_PID_PATH": str(directory / "ejabberd.pid"),
            "ERL_LIBS": os.pathsep.join(sorted({str(path.parent) for path in Path("/usr/lib").glob("*/ejabberd-*")})),
            "ERL_CRASH_DUMP": str(directory / "crash.dump"),
            "HOME": str(directory),
        },
    )


def _program() -> str | None:
    return find_program("ejabberdctl")
