"""The XMPP layer, the only package that uses SPADE and slixmpp: agents, clients, connections, rooms, profiles, servers."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "client": ["AgentClient"],
        "codec.cloud_events": ["EventWriter", "read_events"],
        "codec.decode": ["decode", "read_text"],
        "codec.encoders.chat": ["StyledEncoder"],
        "codec.encoders.program": ["CloudEventEncoder", "encode_malformed_reply"],
        "codec.encoders.text": ["render_block"],
        "codec.evidence": ["Receiver"],
        "codec.markdown.blocks": ["BlockNode", "parse_tree"],
        "codec.markdown.spans": ["parse_runs"],
        "codec.namespaces": [
            "BODY",
            "CHAT_STATES",
            "CHAT_STATES_NAMESPACE",
            "CORRECTION_NAMESPACE",
            "DISPLAYED",
            "JSON",
            "MESSAGE",
            "OOB",
            "OOB_URL",
            "REACTIONS_NAMESPACE",
            "REPLACE",
            "REPLY",
            "REPLY_MARKER",
            "REPLY_NAMESPACE",
            "RESPONSE",
            "RETRACT_NAMESPACE",
            "THREAD",
        ],
        "codec.xml": ["escape", "escape_attribute"],
        "connection.endpoint": ["ServerEndpoint"],
        "connection.liveness": ["BackOff"],
        "connection.probe": ["probe"],
        "connection.tcp": ["tune_tls_buffers"],
        "host": ["HostedAgent", "describe_start_error"],
        "local_exchange": ["LocalExchange"],
        "transport": ["MAX_REQUEST_BYTES", "XmppTransport", "parse_stanza", "read_local"],
        "servers.process": ["AddressInUseError"],
        "servers.selection": ["dump_local_server", "load_local_server", "run_local_server", "select_server"],
        "servers.server": ["LocalServer", "require_free_port"],
    },
)
