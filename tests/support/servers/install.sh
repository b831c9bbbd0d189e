#!/bin/sh
# Installs from Debian what the tests run against, without starting any system service. Does nothing when all is there.
set -eu

SERVERS="prosody lua-dbi-sqlite3 ejabberd nginx libnginx-mod-stream go-sendxmpp profanity tmux postgresql pgbouncer iproute2 valgrind prometheus"
PACKAGES="${*:-$SERVERS}"  # `make browser` names another one
POLICY=/usr/sbin/policy-rc.d

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || {
  echo "make servers: needs Debian or Ubuntu (apt-get); elsewhere install these yourself: $PACKAGES"
  exit 1
}

missing=
for package in $PACKAGES; do is_installed "$package" || missing="$missing $package"; done
if [ -z "$missing" ]; then
  echo "make servers: all are installed: $PACKAGES"
  exit 0
fi

root=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "make servers: needs root or sudo to install:$missing"; exit 1; }
  root=sudo
fi

# Debian asks this file whether a new package's service may start; 101 means no. One that is there already stays.
ours=
if [ ! -e $POLICY ]; then
  trap '[ -z "$ours" ] || $root rm -f $POLICY' EXIT
  trap 'exit 130' INT TERM HUP
  ours=yes
  printf '#!/bin/sh\nexit 101\n' | $root tee $POLICY >/dev/null
  $root chmod 755 $POLICY
fi

log=$(mktemp)
echo "make servers: installing$missing"
if ! { $root apt-get update -q && $root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } \
    >"$log" 2>&1 </dev/null; then
  tail -n 20 "$log"
  echo "make servers: failed; the whole log is $log"
  exit 1
fi
rm -f "$log"
echo "make servers: installed$missing; no service was started. Now \`make test-servers\` runs."
