#!/bin/bash
# check-node.sh OTHER: whether this node of a cluster of two has to be restarted. Exit code 0: no. 1: yes, and it prints why.
# With RESTART=yes it stops a node that has lost the other, and whatever watches the node starts it again.
#
# Two nodes that lose each other for longer than net_ticktime do not find together again by themselves. Each goes on alone, and
# what one has for a person at the other is neither delivered nor sent back. So one of the two restarts: the one with fewer
# sessions, or if both have as many, the one whose name comes later. A node whose partner is away goes on.
set -u
other=${1:?the name of the other node}
ask() { timeout "${TIMEOUT_S:-30}" ejabberdctl "$@"; }
fail() { echo "$1"; exit 1; }

nodes=$(ask list_cluster) || fail "this node does not answer"  # Mnesia's running_db_nodes
if printf '%s\n' "$nodes" | tr -d "'" | grep -qxF -- "$other"; then exit 0; fi
ask --node "$other" list_cluster >/dev/null || { echo "$other is away; this node goes on"; exit 0; }
mine=$(ask connected_users_number) || fail "this node does not answer"
theirs=$(ask --node "$other" connected_users_number) || exit 0
first=$(printf '%s\n' "$NODE" "$other" | sort | head -n 1)
if [ "$mine" -lt "$theirs" ] || { [ "$mine" -eq "$theirs" ] && [ "$first" = "$other" ]; }; then
  echo "$other runs, and is no part of the cluster any more: this node, with $mine of $((mine + theirs)) sessions, has to restart"
  if [ "${RESTART:-no}" = yes ]; then timeout 60 ejabberdctl stop >/dev/null; fi
  exit 1
fi
echo "$other has lost this node, and has to restart"
