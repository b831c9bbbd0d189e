"""The syntax of a JID (RFC 7622), checked before any server is asked."""

from __future__ import annotations

import ipaddress
import unicodedata
from functools import lru_cache

import idna

JID_REMEDY = "write it like name@example.org"

MAX_PART_BYTES = 1023  # bytes (RFC 7622, section 3.1)

FORBIDDEN_IN_LOCAL = frozenset("\"&'/:<>@")

LETTER_AND_DIGIT_CATEGORIES = frozenset({"Ll", "Lu", "Lo", "Lm", "Nd", "Mn", "Mc"})


def parse_jid(text: str) -> str:
    """Parse `local@domain` or `local@domain/resource`, and return the form in which two JIDs can be compared.

    Local part and domain become lower case and NFC; the resource stays unchanged. Raise ValueError with the mistake for
    anything else. A domain alone is not the address of a person or an agent.
    """
    address, slash, resource = text.partition("/")
    local, at, domain = address.partition("@")
    if not at:
        raise ValueError(f"{text!r} is not a JID; {JID_REMEDY}")
    local = unicodedata.normalize("NFC", local).lower()
    problem = _find_local_part_problem(local)
    if slash and not problem:
        problem = _find_resource_problem(resource)
    if problem:
        raise ValueError(f"{text!r} is not a JID: {problem}; {JID_REMEDY}")
    try:
        domain = parse_domain(domain)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a JID: {error}; {JID_REMEDY}") from error
    return f"{local}@{domain}{slash}{resource}"


def parse_domain(text: str) -> str:
    """Parse a domain, a host name or an IP address (IPv6 in brackets), and return it in lower case.

    Labels of the form `xn--…` become what they stand for (U-labels, RFC 7622, 3.2): servers know the domain by that name.
    Raise ValueError for anything else.
    """
    domain = unicodedata.normalize("NFC", text).lower().removesuffix(".")
    if domain.startswith("[") and domain.endswith("]"):
        try:
            return f"[{ipaddress.IPv6Address(domain[1:-1])}]"
        except ValueError as error:
            raise ValueError(f"{text!r} is not an IPv6 address") from error
    if not domain:
        raise ValueError("the domain is missing")
    if len(domain.encode()) > MAX_PART_BYTES:
        raise ValueError(f"the domain is longer than {MAX_PART_BYTES} bytes")
    try:
        labels = [idna.ulabel(label) if label.startswith("xn--") else label for label in domain.split(".")]
    except idna.IDNAError as error:
        raise ValueError(f"{text!r} is not a domain ({error})") from error
    if not all(_is_label(label) for label in labels):
        raise ValueError(f"{text!r} is not a domain")
    return ".".join(labels)


def _is_label(label: str) -> bool:
    if not all(letter == "-" or _is_letter_or_digit(letter) for letter in label):
        return False
    if not label or label.startswith("-") or label.endswith("-"):
        return False
    try:
        return len(label.encode("idna")) <= 63
    except UnicodeError:
        return False


def _find_local_part_problem(local: str) -> str | None:
    if not local:
        return "the part before the @ is empty"
    if len(local.encode()) > MAX_PART_BYTES:
        return f"the part before the @ is longer than {MAX_PART_BYTES} bytes"
    for letter in local:
        if letter in FORBIDDEN_IN_LOCAL or not ("!" <= letter <= "~" or _is_letter_or_digit(letter)):
            return f"{letter!r} is not allowed before the @"
    return None


def _find_resource_problem(resource: str) -> str | None:
    if not resource:
        return "the part after the / is empty"
    if len(resource.encode()) > MAX_PART_BYTES:
        return f"the resource is longer than {MAX_PART_BYTES} bytes"
    if any(unicodedata.category(letter) in {"Cc", "Cs", "Cn"} for letter in resource):
        return "the resource has a control character"
    return None


def _is_letter_or_digit(letter: str) -> bool:
    return unicodedata.category(letter) in LETTER_AND_DIGIT_CATEGORIES


@lru_cache(maxsize=4096)  # called with the same few JIDs, many times a message
def bare_jid(jid: str) -> str:
    """Return the bare JID (RFC 7622): the JID without its resource."""
    return jid.split("/", 1)[0]


def local_part(jid: str) -> str:
    """Return the part before the @, or the domain of a JID without an @."""
    return bare_jid(jid).split("@", 1)[0]


@lru_cache(maxsize=4096)  # as `bare_jid`
def jid_domain(jid: str) -> str:
    """Return the domain of a JID."""
    return bare_jid(jid).rpartition("@")[2]
