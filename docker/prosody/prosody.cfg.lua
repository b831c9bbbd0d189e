-- Prosody for compose.yaml: one domain, stream management, offline messages, in-band registration for the agents.
run_as_root = os.getenv("RUN_AS_ROOT") == "yes" -- for the test of this file; the container runs as the user prosody
data_path = os.getenv("PROSODY_DATA") or "/var/lib/prosody"
certificates = os.getenv("CERTS") or "/certs"
c2s_ports = { tonumber(os.getenv("C2S_PORT") or "5222") }
interfaces = { os.getenv("C2S_INTERFACE") or "*" }
s2s_ports = {}
http_ports = {}
https_ports = {}
pidfile = (os.getenv("PROSODY_DATA") or "/var/lib/prosody") .. "/prosody.pid"
authentication = "internal_hashed"
c2s_require_encryption = true
allow_registration = true
modules_enabled = {
  "disco"; "roster"; "saslauth"; "tls"; "carbons"; "pep"; "private"; "blocklist"; "vcard4"; "vcard_legacy"; "version";
  "uptime"; "time"; "ping"; "register"; "csi_simple"; "smacks"; "offline"; "bookmarks"; "posix";
}
modules_disabled = { "s2s" }
log = { { levels = { min = "info" }, to = "console" } }
ssl = {
  key = (os.getenv("CERTS") or "/certs") .. "/localhost.key";
  certificate = (os.getenv("CERTS") or "/certs") .. "/localhost.crt";
}
VirtualHost "localhost"
