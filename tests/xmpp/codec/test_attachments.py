"""Links in a person's message become attachments in each of their notations; malformed ones are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import pytest

from spade_coreason.domain.messages import Bounce, InboundRequest
from spade_coreason.xmpp.codec.decode import decode
from tests.support.foreign_stanzas import decode_request, message, person_request
from tests.support.profiling import count_calls

PICTURE = "https://example.org/f/a%20picture.png?token=1"


def oob(url: str, description: str = "") -> str:
    """XEP-0066."""
    description_xml = f"<desc>{escape(description)}</desc>" if description else ""
    return f"<x xmlns='jabber:x:oob'><url>{escape(url)}</url>{description_xml}</x>"


def metadata(namespace: str, **properties: str) -> str:
    """A file as XEP-0446 and XEP-0234 describe it; `_` in a name is `-`."""
    fields = "".join(f"<{key.replace('_', '-')}>{escape(value)}</{key.replace('_', '-')}>" for key, value in properties.items())
    return f"<file xmlns='{namespace}'>{fields}</file>"


def sfs(*urls: str, **properties: str) -> str:
    """XEP-0447 with XEP-0446."""
    sources = "".join(f"<url-data xmlns='http://jabber.org/protocol/url-data' target={quoteattr(url)}/>" for url in urls)
    described = metadata("urn:xmpp:file:metadata:0", **properties)
    return f"<file-sharing xmlns='urn:xmpp:sfs:0' disposition='inline'>{described}<sources>{sources}</sources></file-sharing>"


def sims(*urls: str, **properties: str) -> str:
    """XEP-0385 with XEP-0234."""
    sources = "".join(f"<reference xmlns='urn:xmpp:reference:0' type='data' uri={quoteattr(url)}/>" for url in urls)
    described = metadata("urn:xmpp:jingle:apps:file-transfer:5", **properties)
    return (
        "<reference xmlns='urn:xmpp:reference:0' begin='0' end='1' type='data'>"
        f"<media-sharing xmlns='urn:xmpp:sims:1'>{described}<sources>{sources}</sources></media-sharing></reference>"
    )


def attachments_of(*inner: str, text: str = "look") -> list[dict[str, Any]]:
    """Return the attachments of a person's message."""
    found: list[dict[str, Any]] = person_request(text, inner="".join(inner)).payload.get("attachments", [])
    return found


SHARED_PROPERTIES = {"media_type": "Image/PNG", "name": "holiday.png", "size": "3032", "desc": "the sea"}
SHARED_ATTACHMENT = {"url": PICTURE, "name": "holiday.png", "type": "image/png", "size": 3032, "description": "the sea"}


@pytest.mark.parametrize("share", [sfs, sims])
def test_a_shared_file_comes_with_its_description(share: Any) -> None:
    assert attachments_of(share(PICTURE, **SHARED_PROPERTIES)) == [SHARED_ATTACHMENT]


@pytest.mark.parametrize("inner", [oob(PICTURE), sfs(PICTURE), sims(PICTURE)])
def test_a_link_alone_is_named_by_its_last_segment(inner: str) -> None:
    assert attachments_of(inner) == [{"url": PICTURE, "name": "a picture.png", "type": None, "size": None, "description": None}]


@pytest.mark.parametrize(
    "parts", [(oob(PICTURE), sims(PICTURE, **SHARED_PROPERTIES)), (sfs(PICTURE, **SHARED_PROPERTIES), oob(PICTURE))]
)
def test_a_file_that_is_shared_in_two_notations_is_one_attachment(parts: tuple[str, ...]) -> None:
    assert attachments_of(*parts) == [SHARED_ATTACHMENT]


def test_several_files_come_in_the_order_of_the_message_and_at_most_twenty() -> None:
    urls = [f"https://example.org/{number}" for number in range(25)]
    assert [one["url"] for one in attachments_of(*(oob(url) for url in urls))] == urls[:20]


def test_a_text_that_is_the_link_stays_the_query() -> None:
    payload = person_request(PICTURE, inner=oob(PICTURE)).payload
    assert payload["query"] == PICTURE
    assert payload["attachments"][0]["url"] == PICTURE


def test_a_link_in_the_text_alone_is_no_file() -> None:
    assert "attachments" not in person_request(f"see {PICTURE}").payload


def test_the_first_source_that_is_a_link_counts() -> None:
    assert [one["url"] for one in attachments_of(sfs("ftp://example.org/a", PICTURE, "https://example.org/mirror"))] == [
        PICTURE
    ]


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "aesgcm://example.org/a#0011",
        "ftp://example.org/a",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/plain,hi",
        "//example.org/a",
        "https://",
        "https:///a",
        "https://[::1/a",
        "https://[no]/a",
        "https://example.org:port/a",
        "https://example.org:99999/a",
        "https://example.org/a b",
        "https://exam\nple.org/",
        "java\tscript://example.org/",
        f"https://example.org/{'a' * 2029}",
    ],
)
@pytest.mark.parametrize("share", [oob, sfs, sims])
def test_sources_that_are_no_web_links_are_left_out(url: str, share: Any) -> None:
    assert attachments_of(share(url), oob("https://example.org/good")) == [
        {"url": "https://example.org/good", "name": "good", "type": None, "size": None, "description": None}
    ]


def test_an_encrypted_source_is_no_link() -> None:
    inner = (
        "<file-sharing xmlns='urn:xmpp:sfs:0'><sources><encrypted xmlns='urn:xmpp:esfs:0'><sources xmlns='urn:xmpp:sfs:0'>"
        f"<url-data xmlns='http://jabber.org/protocol/url-data' target='{PICTURE}'/></sources></encrypted></sources>"
        "</file-sharing>"
    )
    assert attachments_of(inner) == []


@pytest.mark.parametrize(
    "inner",
    [
        "<x xmlns='jabber:x:oob'/>",
        "<x xmlns='jabber:x:oob'><url/></x>",
        "<file-sharing xmlns='urn:xmpp:sfs:0'/>",
        "<file-sharing xmlns='urn:xmpp:sfs:0'><sources/></file-sharing>",
        "<file-sharing xmlns='urn:xmpp:sfs:0'><sources><url-data xmlns='http://jabber.org/protocol/url-data'/></sources></file-sharing>",
        "<reference xmlns='urn:xmpp:reference:0' type='mention' uri='xmpp:bob@example.org'/>",
        "<reference xmlns='urn:xmpp:reference:0'><media-sharing xmlns='urn:xmpp:sims:1'/></reference>",
    ],
)
def test_elements_without_a_link_are_ignored(inner: str) -> None:
    assert person_request("hi", inner=inner).payload == {"query": "hi"}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"size": "-1"}, {"size": None}),
        ({"size": "1e3"}, {"size": None}),
        ({"size": "9" * 5000}, {"size": None}),
        ({"size": "\N{ARABIC-INDIC DIGIT THREE}"}, {"size": None}),
        ({"media_type": "png"}, {"type": None}),
        ({"media_type": "image/png; charset=x"}, {"type": None}),
        ({"media_type": "image/" + "x" * 500}, {"type": None}),
        ({"name": "../../etc/passwd"}, {"name": "passwd"}),
        ({"name": "C:\\Windows\\x.txt"}, {"name": "x.txt"}),
        ({"name": ".."}, {"name": "a picture.png"}),
        ({"name": "a\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe\n"}, {"name": "agnp.exe"}),
        ({"name": "n" * 5000}, {"name": "n" * 255}),
        ({"name": "\N{CYRILLIC SMALL LETTER YA}" * 250 + ".pdf"}, {"name": "\N{CYRILLIC SMALL LETTER YA}" * 125 + ".pdf"}),
        ({"name": "n." + "x" * 5000}, {"name": "n." + "x" * 253}),
        ({"name": 'what: "a|b"?.txt'}, {"name": "what_ _a_b__.txt"}),
        ({"desc": "d" * 5000}, {"description": "d" * 1024}),
    ],
)
@pytest.mark.parametrize("share", [sfs, sims])
def test_implausible_properties_of_a_file_are_dropped_or_shortened(
    properties: dict[str, str], expected: dict[str, Any], share: Any
) -> None:
    [one] = attachments_of(share(PICTURE, **properties))
    assert {key: one[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org", None),
        ("https://example.org/", None),
        ("https://example.org/a/..", None),
        ("https://example.org/%2e%2e", None),
        ("https://example.org/..%2f..%2fetc%2fpasswd", "passwd"),
        ("https://example.org/a%00b%0A.txt", "ab.txt"),
        ("https://example.org/%ff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_name_from_a_link_contains_no_path(url: str, name: str | None) -> None:
    [one] = attachments_of(oob(url))
    assert one["name"] == name


# A message with nothing but links


STORE_HINT = "<store xmlns='urn:xmpp:hints'/>"


def attached_sources(url: str) -> str:
    """The sources of a file that an earlier message described (XEP-0447 with XEP-0367), as Dino sends them."""
    source = f"<url-data xmlns='http://jabber.org/protocol/url-data' target={quoteattr(url)}/>"
    earlier = "<attach-to xmlns='urn:xmpp:message-attaching:1' id='earlier'/>"
    return f"{earlier}<sources xmlns='urn:xmpp:sfs:0' id='a'>{source}</sources>"


def fallback(namespace: str, inner: str = "<body/>") -> str:
    """XEP-0428."""
    return f"<fallback xmlns='urn:xmpp:fallback:0' for='{namespace}'>{inner}</fallback>"


SHARES = [oob, sfs, sims, attached_sources]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("body_xml", ["", "<body/>", "<body> \n</body>"])
@pytest.mark.parametrize("type", ["chat", "normal"])
def test_a_link_without_a_text_is_a_request_with_the_link_as_its_query(share: Any, body_xml: str, type: str) -> None:
    request = decode_request(message(body_xml + share(PICTURE), type=type))
    assert request.payload["query"] == PICTURE
    assert [one["url"] for one in request.payload["attachments"]] == [PICTURE]
    assert InboundRequest.from_json(request.to_json()) == replace(request, content="")


def test_several_links_without_a_text_are_lines_of_the_query() -> None:
    urls = ["https://example.org/1", "https://example.org/2"]
    request = decode_request(message("".join(map(oob, urls))))
    assert request.payload["query"].split("\n") == [one["url"] for one in request.payload["attachments"]] == urls


WITH_BODY = f"<body>{PICTURE}</body>"
OLD_SIMS = sims(PICTURE, media_type="image/png").replace("file-transfer:5", "file-transfer:4")
CLIENTS = {
    "Conversations": WITH_BODY + oob(PICTURE),
    "a bridge": oob(PICTURE) + STORE_HINT,
    "Dino": WITH_BODY + oob(PICTURE) + attached_sources(PICTURE) + fallback("urn:xmpp:sfs:0"),
    "Movim": WITH_BODY + OLD_SIMS + oob(PICTURE),
    "a marked range": WITH_BODY + sims(PICTURE) + oob(PICTURE) + fallback("jabber:x:oob", "<body start='0' end='45'/>"),
    "Slidge": sims(PICTURE) + sfs(PICTURE) + oob(PICTURE) + WITH_BODY + fallback("urn:xmpp:sfs:0"),
    "XEP-0447 alone": sfs(PICTURE) + WITH_BODY + fallback("urn:xmpp:sfs:0", ""),
}


@pytest.mark.parametrize("inner", CLIENTS.values(), ids=CLIENTS.keys())
def test_the_same_file_is_the_same_request_in_every_notation(inner: str) -> None:
    payload = decode_request(message(inner)).payload
    assert payload["query"] == PICTURE
    assert [(one["url"], one["name"]) for one in payload["attachments"]] == [(PICTURE, "a picture.png")]


def test_the_older_description_of_movim_is_read() -> None:
    assert attachments_of(OLD_SIMS)[0]["type"] == "image/png"


def test_a_description_whose_sources_come_later_is_no_request_yet() -> None:
    assert decode(message(sfs(name="holiday.png") + STORE_HINT)) is None


@pytest.mark.parametrize(
    "inner",
    [
        "<x xmlns='jabber:x:oob'/>",
        "<reference xmlns='urn:xmpp:reference:0' type='mention' uri='xmpp:bob@example.org'/>",
        sims(),
        f"<forwarded xmlns='urn:xmpp:forward:0'><message xmlns='jabber:client'>{oob(PICTURE)}</message></forwarded>",
        oob(PICTURE) + "<answer xmlns='urn:spade-coreason:answer:0'/>",
        oob(PICTURE) + "<x xmlns='http://jabber.org/protocol/muc#user'/>",
    ],
)
def test_a_message_without_a_text_and_without_a_link_of_its_sender_is_no_request(inner: str) -> None:
    assert decode(message(inner)) is None


def test_a_link_that_bounces_is_no_request() -> None:
    assert isinstance(decode(message(oob(PICTURE) + "<error/>", type="error")), Bounce)


def test_two_files_in_messages_of_one_id_are_two_requests() -> None:
    # Psi counts its ids from 1 again at each start.
    contents = [person_request(text, inner=oob(url)).content for text in ("", "look") for url in (PICTURE, f"{PICTURE}&b")]
    assert len(set(contents)) == 4


@pytest.mark.parametrize(
    ("text", "inner", "query"),
    [
        (f"look\n{PICTURE}", fallback("jabber:x:oob", "<body start='5' end='99'/>"), "look"),
        (f"{PICTURE}\nlook", fallback("urn:xmpp:sims:1", "<body start='0' end='45'/>"), "look"),
        (f"look\n{PICTURE}", fallback("jabber:x:oob", "<body start='5' end='99'/>") * 2, "look"),
        ("aabbcc", fallback("jabber:x:oob", "<body start='0' end='4'/><body start='1' end='2'/>"), "cc"),
        (f"look\n{PICTURE}", fallback("urn:xmpp:reply:0", "<body start='0' end='5'/>"), f"look\n{PICTURE}"),
        (f"look\n{PICTURE}", fallback("urn:of:another"), f"look\n{PICTURE}"),
        (f"look\n{PICTURE}", fallback("urn:xmpp:sfs:0", "<subject/>"), f"look\n{PICTURE}"),
        (f"look\n{PICTURE}", "", f"look\n{PICTURE}"),
    ],
)
def test_a_marked_link_for_other_clients_is_no_part_of_the_query(text: str, inner: str, query: str) -> None:
    assert person_request(text, inner=oob(PICTURE) + inner).payload["query"] == query


def test_a_marked_text_stays_if_its_file_is_none() -> None:
    text = "aesgcm://example.org/a"
    assert person_request(text, inner=oob(text) + fallback("jabber:x:oob")).payload["query"] == text


def test_a_reply_with_a_file_has_neither_the_quote_nor_the_marked_link() -> None:
    reply = "<reply xmlns='urn:xmpp:reply:0' id='m1'/>" + fallback("urn:xmpp:reply:0", "<body start='0' end='9'/>")
    for rest, query in (("", PICTURE), ("look", "look")):
        request = person_request(f"> green?\n{rest}", inner=reply + oob(PICTURE))
        assert (request.payload["query"], request.metadata["reply_to"], request.headers.uses_replies) == (query, "m1", True)
        assert [one["url"] for one in request.payload["attachments"]] == [PICTURE]


# Links that are no attachment


def test_two_addresses_of_one_file_are_one_attachment() -> None:
    mirror, shared = oob("https://b.example/"), sfs("https://a.example/", "https://b.example/")
    assert [one["url"] for one in attachments_of(mirror, shared)] == ["https://b.example/"]
    assert [one["url"] for one in attachments_of(shared, mirror)] == ["https://a.example/"]


@pytest.mark.parametrize("url", ["aesgcm://example.org/a#0011", "javascript:alert(1)", "file:///etc/passwd"])
@pytest.mark.parametrize("share", SHARES)
def test_a_message_with_only_a_link_of_another_kind_shows_it_and_has_no_attachment(url: str, share: Any) -> None:
    assert decode_request(message(share(url))).payload == {"query": url, "attachments_left_out": 1}


def test_a_link_that_is_too_long_is_left_out_and_counted() -> None:
    long = f"https://example.org/{'a' * 60_000}"
    assert decode_request(message(oob(long))).payload == {"query": long[:2048], "attachments_left_out": 1}
    assert person_request("look", inner=oob(long) + sims(long)).payload == {"query": "look", "attachments_left_out": 1}


def test_links_beyond_the_first_twenty_are_counted() -> None:
    payload = person_request("look", inner="".join(oob(f"https://example.org/{number}") for number in range(25))).payload
    assert (len(payload["attachments"]), payload["attachments_left_out"]) == (20, 5)


def test_thousands_of_links_and_sources_cost_little() -> None:
    urls = [f"https://example.org/{number}" for number in range(3000)]
    for stanza in (
        message("".join(map(oob, urls))),
        message(sfs(*urls)),
        message(sims(*urls)),
        message(sfs(*(f"ftp://example.org/{number}" for number in range(3000)))),
        message(oob(urls[0]) * 3000),
    ):
        with count_calls() as calls:
            payload = decode_request(stanza).payload
        assert len(payload.get("attachments", ())) <= 20
        assert len(payload["query"]) < 1000
        assert calls["is_link"] <= 60
