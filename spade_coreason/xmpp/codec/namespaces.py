"""Names on the wire: namespaces, element tags in ElementTree's form, and event types."""

from __future__ import annotations

BODY = "{jabber:client}body"
SUBJECT = "{jabber:client}subject"
THREAD = "{jabber:client}thread"
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
ERROR = "{jabber:client}error"
SHOW = "{jabber:client}show"
SHOWS = frozenset({"away", "chat", "dnd", "xa"})  # RFC 6121, 4.7.2.1
STANZA_ERRORS_NAMESPACE = "urn:ietf:params:xml:ns:xmpp-stanzas"

JSON_NAMESPACE = "urn:xmpp:json:0"  # XEP-0335
JSON = f"{{{JSON_NAMESPACE}}}json"
CHAT_STATES_NAMESPACE = "http://jabber.org/protocol/chatstates"  # XEP-0085
CHAT_STATES = frozenset(f"{{{CHAT_STATES_NAMESPACE}}}{name}" for name in ("active", "composing", "paused", "inactive", "gone"))
RECEIPTS_NAMESPACE = "urn:xmpp:receipts"  # XEP-0184
RECEIPT_REQUEST = f"{{{RECEIPTS_NAMESPACE}}}request"
ORIGIN_ID_NAMESPACE = "urn:xmpp:sid:0"  # XEP-0359
OOB_NAMESPACE = "jabber:x:oob"  # XEP-0066
OOB = f"{{{OOB_NAMESPACE}}}x"
OOB_URL = f"{{{OOB_NAMESPACE}}}url"
OOB_DESC = f"{{{OOB_NAMESPACE}}}desc"
SHARED_FILE = "{urn:xmpp:sfs:0}file-sharing"  # XEP-0447
SHARED_FILE_SOURCES = "{urn:xmpp:sfs:0}sources"
URL_DATA = "{http://jabber.org/protocol/url-data}url-data"
FILE_METADATA = "{urn:xmpp:file:metadata:0}"  # XEP-0446
REFERENCE = "{urn:xmpp:reference:0}reference"  # XEP-0372
SHARED_MEDIA = "{urn:xmpp:sims:1}media-sharing"  # XEP-0385
SHARED_MEDIA_SOURCES = "{urn:xmpp:sims:1}sources"
CHAT_MARKERS_NAMESPACE = "urn:xmpp:chat-markers:0"  # XEP-0333
MARKABLE = f"{{{CHAT_MARKERS_NAMESPACE}}}markable"
DISPLAYED = f"{{{CHAT_MARKERS_NAMESPACE}}}displayed"
CORRECTION_NAMESPACE = "urn:xmpp:message-correct:0"  # XEP-0308
REPLACE = f"{{{CORRECTION_NAMESPACE}}}replace"
RETRACT_NAMESPACE = "urn:xmpp:message-retract:1"  # XEP-0424
RETRACTIONS = (f"{{{RETRACT_NAMESPACE}}}retract", "{urn:xmpp:message-retract:0}retract")  # new and old
APPLY_TO = "{urn:xmpp:fasten:0}apply-to"  # contains the old one
REACTIONS_NAMESPACE = "urn:xmpp:reactions:0"  # XEP-0444
REACTIONS = f"{{{REACTIONS_NAMESPACE}}}reactions"
REACTION = f"{{{REACTIONS_NAMESPACE}}}reaction"
ORIGIN_ID = "{urn:xmpp:sid:0}origin-id"
HINTS_NAMESPACE = "urn:xmpp:hints"  # XEP-0334
STANZA_ID = "{urn:xmpp:sid:0}stanza-id"
REPLY_NAMESPACE = "urn:xmpp:reply:0"  # XEP-0461
REPLY = f"{{{REPLY_NAMESPACE}}}reply"
FALLBACK = "{urn:xmpp:fallback:0}fallback"  # XEP-0428
FALLBACK_BODY = "{urn:xmpp:fallback:0}body"
FILE_NAMESPACES = frozenset({OOB_NAMESPACE, "urn:xmpp:sfs:0", "urn:xmpp:sims:1"})
DELAY = "{urn:xmpp:delay}delay"  # XEP-0203
ENCRYPTION = "{urn:xmpp:eme:0}encryption"  # XEP-0380
ENCRYPTED = {  # the elements themselves, from clients that do not support XEP-0380
    "{eu.siacs.conversations.axolotl}encrypted": "OMEMO",  # XEP-0384, version 0.3
    "{urn:xmpp:omemo:2}encrypted": "OMEMO",
    "{urn:xmpp:openpgp:0}openpgp": "OpenPGP",  # XEP-0373
    "{jabber:x:encrypted}x": "OpenPGP",  # XEP-0027
}
MESSAGE = "{jabber:client}message"
ARCHIVE_NAMESPACE = "urn:xmpp:mam:2"  # XEP-0313
ARCHIVE_RESULT = f"{{{ARCHIVE_NAMESPACE}}}result"
ARCHIVE_FIN = f"{{{ARCHIVE_NAMESPACE}}}fin"
FORWARDED = "{urn:xmpp:forward:0}forwarded"  # XEP-0297
PAGES_NAMESPACE = "http://jabber.org/protocol/rsm"  # XEP-0059
PING_NAMESPACE = "urn:xmpp:ping"  # XEP-0199

MUC_NAMESPACE = "http://jabber.org/protocol/muc"  # XEP-0045
MUC_OWNER_NAMESPACE = f"{MUC_NAMESPACE}#owner"
MUC_USER_NAMESPACE = f"{MUC_NAMESPACE}#user"
MUC_USER = f"{{{MUC_USER_NAMESPACE}}}x"
MUC_INVITE = f"{{{MUC_USER_NAMESPACE}}}invite"
MUC_PASSWORD = f"{{{MUC_USER_NAMESPACE}}}password"
MUC_STATUS = f"{{{MUC_USER_NAMESPACE}}}status"
MUC_ITEM = f"{{{MUC_USER_NAMESPACE}}}item"
MUC_DESTROY = f"{{{MUC_USER_NAMESPACE}}}destroy"
CONFERENCE = "{jabber:x:conference}x"  # XEP-0249
OCCUPANT_ID_NAMESPACE = "urn:xmpp:occupant-id:0"  # XEP-0421
OCCUPANT_ID = f"{{{OCCUPANT_ID_NAMESPACE}}}occupant-id"

FORM_NAMESPACE = "jabber:x:data"  # XEP-0004
DATA_FORM = f"{{{FORM_NAMESPACE}}}x"
FORM_TITLE = f"{{{FORM_NAMESPACE}}}title"
FORM_FIELD = f"{{{FORM_NAMESPACE}}}field"
FORM_VALUE = f"{{{FORM_NAMESPACE}}}value"
RESULT_FORM = "result"  # the type of a form that shows data and asks for none
SPADE_FORM = "spade:x:metadata"  # how SPADE 4 carries the metadata of a message
SPADE_THREAD = "_thread_node"

COMMANDS_NAMESPACE = "http://jabber.org/protocol/commands"  # XEP-0050
QUICK_RESPONSE_NAMESPACE = "urn:xmpp:tmp:quick-response"  # XEP-0439
RESPONSE = f"{{{QUICK_RESPONSE_NAMESPACE}}}response"

# Marks every reply of ours. Our agents never reply to a message with this mark.
REPLY_MARKER_NAMESPACE = "urn:spade-coreason:answer:0"
REPLY_MARKER = f"{{{REPLY_MARKER_NAMESPACE}}}answer"

TYPE_PREFIX = "ai.coreason."
REQUEST_TYPE = "ai.coreason.request"
FRAGMENT_TYPE = "ai.coreason.fragment"
