"""Python runs this module at each start below the tests, because `tests/support/warm.py` puts its directory on PYTHONPATH.

It starts the embedded server by a fork of the process that has the imports, which take most of the start. This process stays
in its place: it passes SIGTERM on, and ends as the server does. If it is killed, the server is too.
"""

import os
import sys


def start_forked(name: str) -> None:
    """Fork the server, and end with it. Return if no process has the imports."""
    import json
    import signal
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{name}")
    except OSError:
        return
    request = {
        "code": "import sys; from spade_coreason.xmpp.servers.embedded_main import main; main(sys.argv[1:])",
        "arguments": sys.orig_argv[3:],
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "signals": {},
        "start_new_session": True,
        "controls_terminal": False,
        "pass_fds": [],
    }
    signal.signal(signal.SIGTERM, lambda *_: connection.send(str(signal.SIGTERM.value).encode()))
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    code = int(connection.recv(100) or -signal.SIGKILL)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if sys.orig_argv[1:2] == ["-P"] and "".join(sys.orig_argv[2:3]).endswith("/embedded_main.py") and "WARM_SERVER" in os.environ:
    start_forked(os.environ["WARM_SERVER"])
