# Three panes: Ada's chat, the terminal of the operator, and Fred's chat. The chats begin when the platform is up.
python servers.py >servers.env 2>servers.log &
until grep -q OPENAI_MODEL servers.env; do sleep 0.1; done
. ./servers.env
chat() {
  echo "until spade-coreason status -c shop.yaml >/dev/null 2>&1; do sleep 0.2; done
SPADE_COREASON_PASSWORD='$2' exec spade-coreason chat shop@example.org --jid $1@example.org \
  --host $XMPP_HOST --port $XMPP_PORT --ca-file '$XMPP_CA_FILE'"
}
exec tmux -S "$HOME/tmux" -f panes.conf new-session "$(chat ada "$ADA_PASSWORD")" \; select-pane -T "Ada" \; \
  split-window -h "exec bash --noprofile --rcfile operator.rc -i" \; select-pane -T "your terminal" \; \
  split-window -h "$(chat fred "$FRED_PASSWORD")" \; select-pane -T "Fred of finance" \; \
  select-layout even-horizontal \; resize-pane -t :.0 -x 38 \; resize-pane -t :.1 -x 39 \; select-pane -t :.1
