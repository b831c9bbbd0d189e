"""Valid stanzas, and mutations of them as hypothesis draws them: bounded, and the same ones in each run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.foreign_stanzas import AGENT, PARENT_ID, REQUEST_ID, ROOT_ID, body, container, envelope, form
from tests.support.long_forms import short_and_long_in_release

many_in_release = short_and_long_in_release("EXAMPLES", 50, 400)
"""The number of examples that a test draws, its parameter `count`. With the variable EXAMPLES they are others, at random."""


def bounded(count: int) -> settings:
    """Return the settings of a test that draws. The examples are derived from the test, so a run never differs from another."""
    return settings(
        max_examples=count,
        derandomize="EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


def drawn(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Run a test with what these strategies draw, which are its arguments."""

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        @many_in_release
        def run(count: int) -> None:
            bounded(count)(given(*strategies)(check))()

        run.__name__ = check.__name__
        return run

    return decorate


FIELDS = "<x xmlns='jabber:x:data' type='submit'><field var='query'><value>hi</value><value>you</value></field></x>"
FORWARDED = (
    "<forwarded xmlns='urn:xmpp:forward:0'><delay xmlns='urn:xmpp:delay' stamp='2026-11-20T10:00:00Z'/>"
    f"<message xmlns='jabber:client' from='bob@example.org/x' to='{AGENT}' type='chat' id='9'><body>late</body>"
    f"<stanza-id xmlns='urn:xmpp:sid:0' by='{AGENT}' id='3'/></message></forwarded>"
)

# What stands in a message, each valid.
MESSAGES = [
    body("hi") + "<thread parent='p'>t</thread><active xmlns='http://jabber.org/protocol/chatstates'/>",
    body("> a\nhi")
    + "<reply xmlns='urn:xmpp:reply:0' id='7' to='notes@example.org'/>"
    + "<fallback xmlns='urn:xmpp:fallback:0' for='urn:xmpp:reply:0'><body start='0' end='4'/></fallback>",
    body("hi") + "<replace xmlns='urn:xmpp:message-correct:0' id='7'/><origin-id xmlns='urn:xmpp:sid:0' id='8'/>",
    body("hi") + "<request xmlns='urn:xmpp:receipts'/><markable xmlns='urn:xmpp:chat-markers:0'/>",
    body("hi")
    + "<delay xmlns='urn:xmpp:delay' from='example.org' stamp='2026-11-20T10:00:00Z'/><no-store xmlns='urn:xmpp:hints'/>",
    body("http://a.b/c") + "<x xmlns='jabber:x:oob'><url>http://a.b/c</url><desc>d</desc></x>",
    body("http://a.b/c")
    + "<file-sharing xmlns='urn:xmpp:sfs:0'><file xmlns='urn:xmpp:file:metadata:0'><name>c</name><media-type>a/b</media-type>"
    + "<size>7</size><desc>d</desc></file><sources><url-data xmlns='http://jabber.org/protocol/url-data' target='http://a.b/c'/>"
    + "</sources></file-sharing>",
    body("http://a.b/c")
    + "<reference xmlns='urn:xmpp:reference:0' type='data' uri='u'><media-sharing xmlns='urn:xmpp:sims:1'><file "
    + "xmlns='urn:xmpp:jingle:apps:file-transfer:5'><name>c</name><size>7</size></file><sources><reference "
    + "xmlns='urn:xmpp:reference:0' type='data' uri='http://a.b/c'/></sources></media-sharing></reference>",
    "<x xmlns='jabber:x:oob'><url>http://a.b/c</url></x><sources xmlns='urn:xmpp:sfs:0' id='s'>"
    "<url-data xmlns='http://jabber.org/protocol/url-data' target='http://a.b/d'/></sources>",
    body("x http://a.b/c")
    + "<x xmlns='jabber:x:oob'><url>http://a.b/c</url></x>"
    + "<fallback xmlns='urn:xmpp:fallback:0' for='jabber:x:oob'><body start='2' end='14'/></fallback>",
    body("hi") + form({"performative": "request", "_thread_": "t"}),
    envelope(),
    envelope(
        request_id=REQUEST_ID,
        root_request_id=ROOT_ID,
        parent_request_id=PARENT_ID,
        metadata={"a": 1},
        capabilities={"supported_events": ["x"], "prefers_markdown": True},
    ),
    container(
        {"type": "ai.coreason.request", "hops": 3, "data": {"payload": {"query": "/help"}, "metadata": {"command": True}}}
    ),
    container({"type": "ai.coreason.block.markdown", "requestid": "r", "id": "e", "data": {"content": "x"}}),
    container(
        [
            {"type": "ai.coreason.request", "id": "e", "thread": "t", "data": {"payload": {"query": "hi"}}},
            {"type": "ai.coreason.request", "id": "f", "hops": 3, "data": {"payload": {}, "request_id": REQUEST_ID}},
        ]
    ),
    container(
        [
            {"type": "ai.coreason.block.markdown", "requestid": "r", "id": "e", "data": {"content": "x"}},
            {"type": "ai.coreason.request.completed", "requestid": "r", "id": "f", "data": {"state": "active"}},
        ]
    )
    + "<answer xmlns='urn:spade-coreason:answer:0'/>",
    body("hi") + container({"type": "org.example"}) + "<answer xmlns='urn:spade-coreason:answer:0'/>",
    "<retract xmlns='urn:xmpp:message-retract:1' id='7'/>" + body("retracted"),
    "<apply-to xmlns='urn:xmpp:fasten:0' id='7'><retract xmlns='urn:xmpp:message-retract:0'/></apply-to>",
    "<reactions xmlns='urn:xmpp:reactions:0' id='7'><reaction>👍</reaction><reaction>❤</reaction></reactions>",
    "<x xmlns='jabber:x:conference' jid='room@muc.example.org' password='p' reason='r'/>",
    "<x xmlns='http://jabber.org/protocol/muc#user'><invite from='a@b'><reason>r</reason></invite><password>p</password></x>",
    f"<result xmlns='urn:xmpp:mam:2' id='3' queryid='q'>{FORWARDED}</result>",
    f"<received xmlns='urn:xmpp:carbons:2'>{FORWARDED}</received>",
    f"<sent xmlns='urn:xmpp:carbons:2'>{FORWARDED}</sent>",
    "<event xmlns='http://jabber.org/protocol/pubsub#event'><items node='urn:xmpp:avatar:metadata'><item id='1'>"
    + "<metadata xmlns='urn:xmpp:avatar:metadata'><info bytes='7' id='1' type='image/png'/></metadata></item></items></event>",
    body("hi")
    + "<error type='cancel'><item-not-found xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/>"
    + "<text xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'>t</text></error>",
    "<subject>s</subject>",
    body("hi") + "<stanza-id xmlns='urn:xmpp:sid:0' by='room@muc.example.org' id='5'/>",
]

PRESENCES = [
    "<show>away</show><status>s</status><priority>5</priority>",
    "<c xmlns='http://jabber.org/protocol/caps' hash='sha-1' node='n' ver='v'/>"
    + "<x xmlns='vcard-temp:x:update'><photo>p</photo></x>",
    "<x xmlns='http://jabber.org/protocol/muc#user'><item affiliation='none' role='participant' jid='a@b/c' nick='n'/>"
    + "<status code='110'/><status code='303'/></x><occupant-id xmlns='urn:xmpp:occupant-id:0' id='o'/>",
    "<x xmlns='http://jabber.org/protocol/muc#user'><destroy jid='r@b'><reason>r</reason></destroy></x>",
    "<error type='cancel'><conflict xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>",
    "<nick xmlns='http://jabber.org/protocol/nick'>n</nick><idle xmlns='urn:xmpp:idle:1' since='2026-11-20T10:00:00Z'/>",
    "<answer xmlns='urn:spade-coreason:answer:0'/>",
]

IQS = [
    "<ping xmlns='urn:xmpp:ping'/>",
    "<query xmlns='jabber:iq:version'><name>n</name><version>1</version></query>",
    "<query xmlns='jabber:iq:roster' ver='7'><item jid='a@b' subscription='both' name='n' ask='subscribe'>"
    + "<group>g</group></item></query>",
    "<query xmlns='http://jabber.org/protocol/disco#info' node='http://jabber.org/protocol/commands'>"
    + "<identity category='client' type='pc' name='Profanity 0.13'/>"
    + "<feature var='urn:xmpp:reply:0'/><feature var='urn:xmpp:message-correct:0'/></query>",
    "<query xmlns='http://jabber.org/protocol/disco#items' node='http://jabber.org/protocol/commands'>"
    + "<item jid='a@b'/></query>",
    f"<command xmlns='http://jabber.org/protocol/commands' node='help' action='execute' sessionid='s'>{FIELDS}</command>",
    "<command xmlns='http://jabber.org/protocol/commands' node='status' action='complete'/>",
    "<vCard xmlns='vcard-temp'><FN>n</FN><NOTE>d</NOTE><PHOTO><TYPE>image/png</TYPE><BINVAL>aGk=</BINVAL></PHOTO></vCard>",
    "<pubsub xmlns='http://jabber.org/protocol/pubsub'><items node='urn:xmpp:vcard4'><item id='current'>"
    + "<vcard xmlns='urn:ietf:params:xml:ns:vcard-4.0'><fn><text>n</text></fn></vcard></item></items></pubsub>",
    "<fin xmlns='urn:xmpp:mam:2' complete='true'><set xmlns='http://jabber.org/protocol/rsm'><first>1</first><last>7</last>"
    + "<count>3</count></set></fin>",
    "<request xmlns='urn:xmpp:http:upload:0' filename='a' size='7' content-type='a/b'/>",
    "<query xmlns='jabber:iq:register'><username>u</username><password>p</password></query>",
    "<time xmlns='urn:xmpp:time'/>",
    "<error type='cancel'><item-not-found xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>",
]

TYPES = {
    "message": ["chat", "normal", "groupchat", "headline", "error", "odd", ""],
    "presence": ["unavailable", "subscribe", "subscribed", "unsubscribe", "unsubscribed", "probe", "error", "odd", ""],
    "iq": ["get", "set", "result", "error"],
}

# Senders as a server may let them pass: the JID is valid, or left out.
SENDERS = [
    "alice@example.org/phone",
    "alice@example.org",
    "bob@example.org/ü 🎈'\"<&>",
    "example.org",
    "example.org/res",
    "room@muc.example.org",
    "room@muc.example.org/nick",
    AGENT,
    f"{AGENT}/agent",
]

ODD = [
    *("", " ", "\n", "0", "-1", "1.5", "9" * 400, "1e999999", "NaN", "²", "٣", "1_000", "0x10", "true", "null", "None", "now"),
    *("2026-11-20T10:00:00Z", "2026-13-45T99:99:99Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
    *(
        "@",
        "/",
        "@/",
        "a@",
        "@b",
        "a@b@c",
        "a@b/c/d",
        "a b@c",
        "xn--@xn--",
        "é@ü",
        "[::1",
        "a@[::1]",
        AGENT,
        "room@muc.example.org",
    ),
    *("x" * 1025, "x" * 70_000, "\u202e", "\ufdd0", "\ud7ff", "🎈", "👍🏽", "'\"<&>", "]]>", "{", "{}", "[]", "%", "{0}"),
    *("http://[::1", "http://a:99999/", "http://a:x/", "HTTP://A/../..", "javascript:x", "http://\u2100.c/", "//help", "/help"),
    '{"type":"ai.coreason.request","data":{"payload":{}}}',
    '{"type":"ai.coreason.request","data":{"payload":{"a":1,"a":2}}}',
]
NAMES = "id type from to by var start end stamp jid code nick node xml:lang for parent".split()
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def stanza(tag: str, inner: str, sender: str | None, kind: str, to: str = AGENT) -> Element:
    """Build a valid stanza."""
    built = fromstring(f"<{tag} xmlns='jabber:client' id='1'>{inner}</{tag}>")
    built.set("to", to)
    if sender is not None:
        built.set("from", sender)
    if kind:
        built.set("type", kind)
    return built


def mutate(draw: st.DrawFn, root: Element) -> None:
    """Change one thing below `root`, or its text. Its sender, addressee and name stay."""
    parents = [element for element in root.iter() if len(element)]
    inner = list(root.iter())[1:]
    action = draw(
        st.sampled_from(["text", "attribute", "no attribute", "name", "namespace", "remove", "twice", "nest", "tail"])
    )
    if not inner or not parents:
        root.text = draw(st.sampled_from(ODD))
        return
    element, parent = draw(st.sampled_from(inner)), draw(st.sampled_from(parents))
    child = draw(st.sampled_from(list(parent)))
    namespace, _, name = element.tag.rpartition("}")
    if action == "text":
        element.text = draw(st.sampled_from(ODD) | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"])))
    elif action == "tail":
        element.tail = draw(st.sampled_from(ODD))
    elif action == "attribute":
        names = [*element.attrib, *NAMES]
        attribute = draw(st.sampled_from(names))
        element.set(LANGUAGE if attribute == "xml:lang" else attribute, draw(st.sampled_from(ODD)))
    elif action == "no attribute":
        for attribute in list(element.attrib)[draw(st.integers(0, 3)) :]:
            del element.attrib[attribute]
    elif action == "name":
        element.tag = (
            namespace + "}" * bool(namespace) + draw(st.sampled_from([other.tag.rpartition("}")[2] for other in inner]))
        )
    elif action == "namespace":
        element.tag = (
            draw(st.sampled_from([other.tag.rpartition("}")[0] + "}" for other in inner if "}" in other.tag] + [""])) + name
        )
    elif action == "remove":
        parent.remove(child)
    elif action == "twice":
        parent.append(deepcopy(child))
    else:
        draw(st.sampled_from(inner)).append(deepcopy(element))


scalars = st.none() | st.booleans() | st.sampled_from([0, -1, 1.5, 2**31, 2**63, 10**300, -1e308]) | st.sampled_from(ODD)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "query", ""]), inner, max_size=3)
)


@st.composite
def json_objects(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """Draw an object with some of the values of a valid one, and others of any type."""
    keys = draw(st.sets(st.sampled_from([*valid, "other"])))
    return {key: value for key, value in valid.items() if key not in keys} | {
        key: draw(json_values) for key in keys if draw(st.booleans())
    }


@st.composite
def mutated(
    draw: st.DrawFn,
    tags: Sequence[str] = ("message",),
    senders: Sequence[str | None] = (*SENDERS, None),
    to: str = AGENT,
    part: str | None = None,
) -> Element:
    """Draw a stanza with one or two parts of valid ones, changed up to six times. `part` is the first of them.

    It is within the limits of a stanza.
    """
    tag = draw(st.sampled_from(tags))
    parts = st.sampled_from({"message": MESSAGES, "presence": PRESENCES, "iq": IQS}[tag])
    inner = draw(parts) if part is None else part
    if draw(st.integers(0, 3)) == 0:
        inner += draw(parts)
    root = stanza(tag, inner, draw(st.sampled_from(senders)), draw(st.sampled_from(TYPES[tag])), to)
    for _ in range(draw(st.integers(0, 6))):
        mutate(draw, root)
    stanza_id = draw(st.sampled_from(["1", "1", "1", None, *ODD]))
    if stanza_id is None:
        del root.attrib["id"]
    else:
        root.set("id", stanza_id)
    return fromstring(tostring(root))
