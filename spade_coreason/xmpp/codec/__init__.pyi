from .addressing import extract_question as extract_question
from .adhoc import (
    decode_command_call as decode_command_call,
    problem_stanza as problem_stanza,
    split_result as split_result,
    stage_stanza as stage_stanza,
)
from .archive import (
    ArchivedMessage as ArchivedMessage,
    ArchivePage as ArchivePage,
    archive_query as archive_query,
    is_addressed_to as is_addressed_to,
    newest_query as newest_query,
    read_archived as read_archived,
    read_page as read_page,
)
from .batches import (
    BATCH_START as BATCH_START,
    BatchPart as BatchPart,
    build_batch as build_batch,
    read_batch_part as read_batch_part,
)
from .cloud_events import (
    RequestMessage as RequestMessage,
    read_events as read_events,
    read_reply_json as read_reply_json,
    retraction_stanza as retraction_stanza,
)
from .decode import (
    decode as decode,
    read_bounce as read_bounce,
)
from .encoders.chat import (
    ChatEncoder as ChatEncoder,
    GroupchatEncoder as GroupchatEncoder,
)
from .encoders.program import (
    CloudEventEncoder as CloudEventEncoder,
    encode_malformed_reply as encode_malformed_reply,
)
from .encoders.spade import (
    SpadeEncoder as SpadeEncoder,
)
from .evidence import (
    Receiver as Receiver,
    assigned_id as assigned_id,
    read_id as read_id,
)
from .language import read_language as read_language
from .muc import (
    STATUS_AFFILIATION_LOST as STATUS_AFFILIATION_LOST,
    STATUS_BANNED as STATUS_BANNED,
    STATUS_CREATED as STATUS_CREATED,
    STATUS_KICKED as STATUS_KICKED,
    STATUS_MEMBERS_ONLY as STATUS_MEMBERS_ONLY,
    STATUS_RENAMED as STATUS_RENAMED,
    STATUS_SELF as STATUS_SELF,
    STATUS_SHUTDOWN as STATUS_SHUTDOWN,
    STATUS_TECHNICAL_FAILURE as STATUS_TECHNICAL_FAILURE,
    RoomMessage as RoomMessage,
    RoomPresence as RoomPresence,
    RoomReference as RoomReference,
    encode_join as encode_join,
    encode_leave as encode_leave,
    is_configuration_change as is_configuration_change,
    private_request as private_request,
    read_invitation as read_invitation,
    read_presence as read_presence,
    read_room_message as read_room_message,
    read_room_reference as read_room_reference,
    room_request as room_request,
    self_ping_query as self_ping_query,
    unlock_query as unlock_query,
)
from .namespaces import (
    BODY as BODY,
    CHAT_STATES as CHAT_STATES,
    CHAT_STATES_NAMESPACE as CHAT_STATES_NAMESPACE,
    COMMANDS_NAMESPACE as COMMANDS_NAMESPACE,
    CONFERENCE as CONFERENCE,
    CORRECTION_NAMESPACE as CORRECTION_NAMESPACE,
    DISPLAYED as DISPLAYED,
    FORM_FIELD as FORM_FIELD,
    FORM_NAMESPACE as FORM_NAMESPACE,
    FORM_VALUE as FORM_VALUE,
    JSON_NAMESPACE as JSON_NAMESPACE,
    LANGUAGE as LANGUAGE,
    MESSAGE as MESSAGE,
    MUC_INVITE as MUC_INVITE,
    MUC_USER as MUC_USER,
    OCCUPANT_ID_NAMESPACE as OCCUPANT_ID_NAMESPACE,
    OOB as OOB,
    OOB_URL as OOB_URL,
    ORIGIN_ID as ORIGIN_ID,
    ORIGIN_ID_NAMESPACE as ORIGIN_ID_NAMESPACE,
    REACTIONS_NAMESPACE as REACTIONS_NAMESPACE,
    RECEIPTS_NAMESPACE as RECEIPTS_NAMESPACE,
    REPLACE as REPLACE,
    REPLY as REPLY,
    REPLY_MARKER as REPLY_MARKER,
    REPLY_NAMESPACE as REPLY_NAMESPACE,
    RETRACT_NAMESPACE as RETRACT_NAMESPACE,
    SHOW as SHOW,
    SHOWS as SHOWS,
    STANZA_ERRORS_NAMESPACE as STANZA_ERRORS_NAMESPACE,
    SUBJECT as SUBJECT,
    THREAD as THREAD,
)
from .receipts_and_notices import (
    encode_displayed as encode_displayed,
    encode_notice as encode_notice,
    encode_receipt as encode_receipt,
)
from .xml import (
    clean as clean,
    escape as escape,
    escape_attribute as escape_attribute,
)
