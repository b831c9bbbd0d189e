"""JIDs and domains, in one form."""

from __future__ import annotations

import pytest

from spade_coreason.domain.jid import parse_domain, parse_jid


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Echo@Example.ORG", "echo@example.org"),
        ("a@b", "a@b"),
        ("a.b-c_d+e!#$%*=?^`{|}~@example.org.", "a.b-c_d+e!#$%*=?^`{|}~@example.org"),
        ("écho@müller.example/Tisch 1", "écho@müller.example/Tisch 1"),
        ("e\u0301cho@example.org", "écho@example.org"),
        ("a@127.0.0.1", "a@127.0.0.1"),
        ("a@[::0001]", "a@[::1]"),
        ("a@b/c@d/e", "a@b/c@d/e"),
    ],
)
def test_a_jid_is_normalised(text: str, parsed: str) -> None:
    assert parse_jid(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "@b", "a@", "a@b@c", "a b@c", "a:b@c", "a&b@c", "a'b@c", 'a"b@c', "<a>@b", "🙂@b", "a\n@b"),
        *("a@b/", "a@b/\x00", "a@b c", "a@-b", "a@b-", "a@b..c", "a@.b", "a@b_c", "a@[::1", "a@[x]"),
        *("a@" + "b" * 64, "x" * 1024 + "@b", "a@b/" + "r" * 1024),
    ],
)
def test_a_malformed_jid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JID"):
        parse_jid(text)


def test_a_domain_is_normalised_and_not_empty() -> None:
    assert parse_domain("Example.ORG.") == "example.org"
    with pytest.raises(ValueError, match="the domain is missing"):
        parse_domain("")
