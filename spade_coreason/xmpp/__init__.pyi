from .client import (
    AgentClient as AgentClient,
)
from .codec.cloud_events import (
    EventWriter as EventWriter,
    read_events as read_events,
)
from .codec.decode import (
    decode as decode,
    read_text as read_text,
)
from .codec.encoders.chat import (
    StyledEncoder as StyledEncoder,
)
from .codec.encoders.program import (
    CloudEventEncoder as CloudEventEncoder,
    encode_malformed_reply as encode_malformed_reply,
)
from .codec.encoders.text import (
    render_block as render_block,
)
from .codec.evidence import (
    Receiver as Receiver,
)
from .codec.markdown.blocks import (
    BlockNode as BlockNode,
    parse_tree as parse_tree,
)
from .codec.markdown.spans import (
    parse_runs as parse_runs,
)
from .codec.namespaces import (
    BODY as BODY,
    CHAT_STATES as CHAT_STATES,
    CHAT_STATES_NAMESPACE as CHAT_STATES_NAMESPACE,
    CORRECTION_NAMESPACE as CORRECTION_NAMESPACE,
    DISPLAYED as DISPLAYED,
    JSON as JSON,
    MESSAGE as MESSAGE,
    OOB as OOB,
    OOB_URL as OOB_URL,
    REACTIONS_NAMESPACE as REACTIONS_NAMESPACE,
    REPLACE as REPLACE,
    REPLY as REPLY,
    REPLY_MARKER as REPLY_MARKER,
    REPLY_NAMESPACE as REPLY_NAMESPACE,
    RESPONSE as RESPONSE,
    RETRACT_NAMESPACE as RETRACT_NAMESPACE,
    THREAD as THREAD,
)
from .codec.xml import (
    escape as escape,
    escape_attribute as escape_attribute,
)
from .connection.endpoint import (
    ServerEndpoint as ServerEndpoint,
)
from .connection.liveness import (
    BackOff as BackOff,
)
from .connection.login import (
    Login as Login,
)
from .connection.probe import (
    open_stream as open_stream,
    probe as probe,
)
from .connection.tcp import (
    tune_tls_buffers as tune_tls_buffers,
)
from .host import (
    HostedAgent as HostedAgent,
    describe_start_error as describe_start_error,
)
from .local_exchange import (
    LocalExchange as LocalExchange,
)
from .servers.process import (
    AddressInUseError as AddressInUseError,
)
from .servers.selection import (
    dump_local_server as dump_local_server,
    load_local_server as load_local_server,
    run_local_server as run_local_server,
    select_server as select_server,
)
from .servers.server import (
    LocalServer as LocalServer,
    require_free_port as require_free_port,
)
from .transport import (
    MAX_REQUEST_BYTES as MAX_REQUEST_BYTES,
    XmppTransport as XmppTransport,
    parse_stanza as parse_stanza,
    read_local as read_local,
)
