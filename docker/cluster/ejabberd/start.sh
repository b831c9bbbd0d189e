#!/bin/bash
# Starts one node, and lets it join the node JOIN at its first start. Runs until SIGTERM.
set -eu
export SPOOL_DIR=${SPOOL_DIR:-/var/lib/ejabberd}
certs=${CERTS:-/certs}
if ! openssl x509 -in "$certs/localhost.crt" -noout -checkend 2592000 >/dev/null 2>&1; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 825 -subj /CN=localhost \
    -addext "subjectAltName=DNS:localhost,DNS:rooms.localhost,DNS:pubsub.localhost" \
    -keyout "$certs/localhost.key" -out "$certs/localhost.crt" 2>/dev/null
  (umask 077 && cat "$certs/localhost.crt" "$certs/localhost.key" > "$certs/localhost.pem")
fi
trap 'ejabberdctl --no-timeout stop >/dev/null' TERM INT
ejabberdctl foreground &
node=$!
until (exec 3<>"/dev/tcp/127.0.0.1/${C2S_PORT:-5222}") 2>/dev/null; do  # the last that a node does when it starts
  kill -0 $node
  sleep 0.5
done
if [ -n "${JOIN:-}" ] && [ ! -e "$SPOOL_DIR/joined" ]; then
  ejabberdctl --no-timeout join_cluster "$JOIN"
  touch "$SPOOL_DIR/joined"
fi
echo "Node $NODE runs."
while kill -0 $node 2>/dev/null; do wait $node || true; done
