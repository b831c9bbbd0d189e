"""The domain of callers is recognised in every spelling, and refused where a person, an agent, a room or a domain is named."""

# ruff: noqa: RUF001 - the letters of other widths are what is tested

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, strategies as st
from slixmpp import JID, InvalidJID

from spade_coreason.domain.callers import (
    CALLERS_DOMAIN,
    HIDDEN_PERSON,
    caller_address,
    is_caller,
    is_caller_domain,
    key_of,
    person_below,
    refuse_caller,
)
from spade_coreason.domain.jid import parse_jid

SOFT_HYPHEN, ZERO_WIDTH_SPACE, ZERO_WIDTH_JOINER, WORD_JOINER, VARIATION = "\xad", "\u200b", "\u200d", "\u2060", "\ufe0f"
SPELLINGS = {
    "plain": "callers.invalid",
    "upper case": "CALLERS.Invalid",
    "a trailing dot": "callers.invalid.",
    "trailing dots": "callers.invalid...",
    "a leading dot": ".callers.invalid",
    "spaces": " callers.invalid ",
    "a subdomain": "website.callers.invalid",
    "a subdomain of a subdomain": "a.b.callers.invalid.",
    "an ideographic full stop": "callers。invalid",
    "a full-width full stop": "callers．invalid",
    "a half-width ideographic full stop": "callers｡invalid",
    "a one dot leader": "callers․invalid",
    "a subdomain with ideographic full stops": "a。callers｡invalid．",
    "full-width letters": "ｃａｌｌｅｒｓ.ｉｎｖａｌｉｄ",
    "full-width capitals": "ＣＡＬＬＥＲＳ．ＩＮＶＡＬＩＤ",
    "mathematical letters": "𝐜𝐚𝐥𝐥𝐞𝐫𝐬.𝓲𝓷𝓿𝓪𝓵𝓲𝓭",
    "letters in circles": "ⓒallers.invalid",
    "a long s": "callerſ.invalid",
    "a roman numeral": "ⅽaⅼⅼers.invalid",
    "a soft hyphen": f"call{SOFT_HYPHEN}ers.invalid",
    "a zero-width space": f"callers{ZERO_WIDTH_SPACE}.invalid",
    "a zero-width joiner": f"callers.inv{ZERO_WIDTH_JOINER}alid",
    "a word joiner": f"{WORD_JOINER}callers.invalid{WORD_JOINER}",
    "a variation selector": f"c{VARIATION}allers.invalid",
    "an A-label of plain letters": "xn--callers-.invalid",
    "two A-labels": "xn--callers-.xn--invalid-",
    "an A-label in capitals": "XN--CALLERS-.INVALID",
    "an A-label of full-width letters": "xn--" + "ｃallers".encode("punycode").decode() + ".invalid",
    "an A-label with a soft hyphen": "xn--" + f"call{SOFT_HYPHEN}ers".encode("punycode").decode() + ".invalid",
    "an A-label in an A-label": "xn--xn--callers--.invalid",
    "an A-label whose prefix is full-width": "ｘｎ--callers-.invalid",
    "an A-label with a dot in it": "xn--" + "callers。invalid".encode("punycode").decode(),
}
OTHERS = ["invalid", "callers", "callers.example", "mycallers.invalid", "callers.invalid.example.org", "localhost", "", "*"]
OTHERS += [
    "xn--bcher-kva.example",
    "xn--.example",
    "xn--99999999.invalid",
    "[::1]",
    "127.0.0.1",
    "caller.invalid",
    HIDDEN_PERSON,
]


@pytest.mark.parametrize("domain", SPELLINGS.values(), ids=SPELLINGS)
def test_the_domain_of_callers_is_recognised_in_every_spelling(domain: str) -> None:
    assert is_caller_domain(domain)
    for jid in (domain, f"website@{domain}", f"website@{domain}/phone", f"a@b@{domain}", f"website@{domain}/x@example.org"):
        assert is_caller(jid), jid
        with pytest.raises(ValueError, match="callers of doors get access by a key: spade-coreason keys create"):
            refuse_caller(jid)


@pytest.mark.parametrize("domain", OTHERS)
def test_another_domain_is_not_that_of_callers(domain: str) -> None:
    assert not is_caller_domain(domain)
    assert refuse_caller(f"ann@{domain}/callers.invalid") == f"ann@{domain}/callers.invalid"
    assert not is_caller(f"callers.invalid@{domain}")


def test_an_at_sign_or_a_slash_of_another_width_hides_nothing() -> None:
    assert is_caller_domain("website＠callers.invalid")
    assert is_caller_domain("callers.invalid／phone")


_LETTERS = {letter: [letter, letter.upper(), chr(ord(letter) + 0xFEE0)] for letter in "calersinvd"} | {".": list(".。．｡")}
_DROPPED = st.sampled_from(["", "", "", SOFT_HYPHEN, ZERO_WIDTH_SPACE, ZERO_WIDTH_JOINER, WORD_JOINER, VARIATION, "\u034f"])


@st.composite
def spellings(draw: st.DrawFn) -> str:
    text = "".join(draw(st.sampled_from(_LETTERS[letter])) + draw(_DROPPED) for letter in CALLERS_DOMAIN)
    return draw(st.sampled_from(["", "shop.", "läden。"])) + text + draw(st.sampled_from(["", ".", "。"]))


@given(spellings())
def test_no_mixture_of_spellings_hides_the_domain(domain: str) -> None:
    assert is_caller(f"website@{domain}/device")


@given(st.text())
def test_what_a_server_takes_for_the_domain_is_recognised(text: str) -> None:
    """Whatever slixmpp's stringprep, or the parser of settings, makes of a text: if that is the domain, the text is."""
    for parse in (lambda domain: JID(f"a@{domain}").domain, lambda domain: parse_jid(f"a@{domain}").partition("@")[2]):
        for domain in (text, f"{text}{CALLERS_DOMAIN}", f"{CALLERS_DOMAIN}{text}"):
            try:
                parsed = parse(domain)
            except (InvalidJID, ValueError):
                continue
            if parsed == CALLERS_DOMAIN or parsed.endswith(f".{CALLERS_DOMAIN}"):
                assert is_caller(f"a@{domain}"), (domain, parsed)


@given(st.text())
def test_every_normal_form_of_a_domain_is_judged_alike(text: str) -> None:
    assert is_caller_domain(text) == is_caller_domain(unicodedata.normalize("NFKC", text))


@given(st.text(), st.text())
def test_the_people_below_a_key_are_different_and_of_the_key(one: str, other: str) -> None:
    first, second = person_below("website", one), person_below("website", other)
    assert (first == second) is (one == other)
    assert is_caller(first)
    assert parse_jid(first) == first
    assert key_of(first) == key_of(caller_address("website")) == "website@callers.invalid"
