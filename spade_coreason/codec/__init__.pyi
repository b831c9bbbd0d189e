from .adhoc import (
    Action as Action,
    CommandCall as CommandCall,
    CommandForm as CommandForm,
    CommandProblem as CommandProblem,
    CommandStage as CommandStage,
    fitting as fitting,
    problem_stanza as problem_stanza,
    read_call as read_call,
    stage_stanza as stage_stanza,
)
from .archive import (
    Archived as Archived,
    Page as Page,
    archive_id as archive_id,
    archive_query as archive_query,
    is_sent_to as is_sent_to,
    newest_query as newest_query,
    read_archived as read_archived,
    read_page as read_page,
)
from .attachments import (
    is_link as is_link,
    name_in as name_in,
    plain_name as plain_name,
)
from .cloud_events import (
    request_stanza as request_stanza,
    retraction_stanza as retraction_stanza,
)
from .decode import (
    decode as decode,
)
from .encoders.base import (
    PLAIN as PLAIN,
    Manner as Manner,
    Voice as Voice,
)
from .encoders.factory import (
    voice_for as voice_for,
)
from .encoders.program import (
    malformed_answer as malformed_answer,
)
from .encoders.text import (
    block_text as block_text,
)
from .markdown.convert import (
    styled as styled,
)
from .markdown.tables import (
    FENCE as FENCE,
)
from .muc import (
    BANNED as BANNED,
    CREATED as CREATED,
    KICKED as KICKED,
    NO_AFFILIATION as NO_AFFILIATION,
    NO_MEMBER as NO_MEMBER,
    RENAMED as RENAMED,
    SELF as SELF,
    SHUTDOWN as SHUTDOWN,
    TECHNICAL as TECHNICAL,
    Reference as Reference,
    Seen as Seen,
    Utterance as Utterance,
    joining as joining,
    leaving as leaving,
    private_request as private_request,
    question_to as question_to,
    read_invitation as read_invitation,
    read_presence as read_presence,
    read_reference as read_reference,
    read_utterance as read_utterance,
    room_request as room_request,
    self_ping as self_ping,
    unlocking as unlocking,
)
from .namespaces import (
    BODY as BODY,
    CHAT_STATES as CHAT_STATES,
    CHAT_STATES_NAMESPACE as CHAT_STATES_NAMESPACE,
    COMMANDS as COMMANDS,
    CORRECTION_NAMESPACE as CORRECTION_NAMESPACE,
    DISPLAYED as DISPLAYED,
    FORM_FIELD as FORM_FIELD,
    FORM_NAMESPACE as FORM_NAMESPACE,
    FORM_VALUE as FORM_VALUE,
    JSON_NAMESPACE as JSON_NAMESPACE,
    LANGUAGE as LANGUAGE,
    MARKER as MARKER,
    MESSAGE as MESSAGE,
    MUC_INVITE as MUC_INVITE,
    OCCUPANT_ID_NAMESPACE as OCCUPANT_ID_NAMESPACE,
    OOB as OOB,
    OOB_URL as OOB_URL,
    ORIGIN_ID_NAMESPACE as ORIGIN_ID_NAMESPACE,
    REACTIONS_NAMESPACE as REACTIONS_NAMESPACE,
    RECEIPTS_NAMESPACE as RECEIPTS_NAMESPACE,
    REPLACE as REPLACE,
    REPLY as REPLY,
    REPLY_NAMESPACE as REPLY_NAMESPACE,
    RETRACT as RETRACT,
    SHOW as SHOW,
    SHOWS as SHOWS,
    STANZA_ERRORS as STANZA_ERRORS,
    SUBJECT as SUBJECT,
    THREAD as THREAD,
)
from .receipts import (
    displayed as displayed,
    notice as notice,
    receipt as receipt,
)
from .xml import (
    attribute as attribute,
    clean as clean,
    escape as escape,
    summary as summary,
)
