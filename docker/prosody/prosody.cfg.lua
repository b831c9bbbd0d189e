-- Prosody for compose.yaml: one domain with an archive, rooms and uploads; agents register themselves.
local function env(name, default) return os.getenv(name) or default end

run_as_root = os.getenv("RUN_AS_ROOT") == "yes" -- for the test of this file; the container runs as the user prosody
local data, certs = env("PROSODY_DATA", "/var/lib/prosody"), env("CERTS", "/certs")
data_path = data
pidfile = data .. "/prosody.pid"
certificates = certs
ssl = { key = certs .. "/localhost.key"; certificate = certs .. "/localhost.crt" }

c2s_ports = { tonumber(env("C2S_PORT", "5222")) }
interfaces = { env("C2S_INTERFACE", "*") }
c2s_require_encryption = true
gc = { mode = "generational" } -- the default mode takes half of the time where many messages pass
smacks_max_queue_size = 5000 -- the default, 500, ends the resumption of a busy agent
smacks_max_unacked_stanzas = 50 -- the default, 0, asks after every stanza; by the archive an agent knows what comes again
network_settings = { nagle = false } -- else a small message waits until the one before it is acknowledged, 40 ms
s2s_ports = {}
http_ports = { tonumber(env("HTTP_PORT", "5280")) }
http_interfaces = { env("C2S_INTERFACE", "*") }
https_ports = {}
http_external_url = env("UPLOAD_URL", "http://prosody.localhost:5280/")
http_default_host = "upload.localhost"

authentication = "internal_hashed"
allow_registration = env("ALLOW_REGISTRATION", "yes") == "yes"

-- The archive in SQLite: the default storage gets slow when it is long.
storage = { archive = "sql"; muc_log = "sql" }
sql = { driver = "SQLite3"; database = data .. "/archive.sqlite" }
archive_expires_after = "4w"

modules_enabled = {
  "disco"; "roster"; "saslauth"; "tls"; "carbons"; "pep"; "private"; "blocklist"; "vcard4"; "vcard_legacy"; "version";
  "uptime"; "time"; "ping"; "register"; "csi_simple"; "smacks"; "offline"; "bookmarks"; "adhoc"; "mam"; "posix";
}
modules_disabled = { "s2s" }
log = { { levels = { min = "info" }, to = "console" } }

VirtualHost "localhost"

Component "rooms.localhost" "muc"
  modules_enabled = { "muc_mam" }
  restrict_room_creation = "local"

Component "upload.localhost" "http_file_share"
  http_file_share_size_limit = 16 * 1024 * 1024
  http_file_share_daily_quota = 256 * 1024 * 1024
  http_file_share_expires_after = 4 * 7 * 24 * 3600
