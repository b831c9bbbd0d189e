# Gives profanity the account of the local server's guest.
export XDG_CONFIG_HOME="$HOME/config" XDG_DATA_HOME="$HOME/data" SSL_CERT_FILE
mkdir -p "$XDG_CONFIG_HOME/profanity/themes" "$XDG_DATA_HOME/profanity"
value() { python -c 'import json, sys; print(json.load(open("data/run.json"))[sys.argv[1]])' "$1"; }
password() { python -c 'import json; print(json.load(open("data/run.json"))["guest"]["password"])'; }
SSL_CERT_FILE=$(value ca_file)
cat >"$XDG_CONFIG_HOME/profanity/profrc" <<END
[ui]
splash=false
beep=false
intype=true
theme=picture
[connection]
correction.allow=true
END
cat >"$XDG_CONFIG_HOME/profanity/themes/picture" <<END
[colours]
titlebar=grey30
titlebar.text=bold_white
titlebar.brackets=white
titlebar.unencrypted=white
titlebar.encrypted=green
titlebar.online=green
statusbar=grey30
statusbar.text=bold_white
statusbar.brackets=white
statusbar.active=cyan
statusbar.current=cyan
statusbar.new=yellow
END
cat >"$XDG_DATA_HOME/profanity/accounts" <<END
[guest@localhost]
enabled=true
jid=guest@localhost
server=$(value host)
port=$(value port)
password=$(password)
resource=profanity
END
