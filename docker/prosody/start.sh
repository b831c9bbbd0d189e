#!/bin/sh
# Makes a certificate for this server, at the first start and a month before it ends. Then runs Prosody in the foreground.
set -eu
certs=${CERTS:-/certs}
if ! openssl x509 -in "$certs/localhost.crt" -noout -checkend 2592000 >/dev/null 2>&1; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 825 -subj /CN=localhost \
    -addext "subjectAltName=DNS:localhost" -keyout "$certs/localhost.key" -out "$certs/localhost.crt" 2>/dev/null
fi
exec prosody --config "${CONFIG:-/etc/prosody/prosody.cfg.lua}" -F
