"""Links in a person's message become attachments in each of their notations; malformed ones are left out."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape, quoteattr

import pytest

from tests.support.foreign_stanzas import person_request

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
