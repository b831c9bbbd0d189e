"""The proxy that the environment names for a URL, as a pure decision."""

from __future__ import annotations

import pytest

from spade_coreason import ConfigError
from spade_coreason.domain.environment.proxies import find_proxy

PROXY = "http://proxy.lan:3128"
URL = "https://api.example.com/v1"


@pytest.mark.parametrize(
    ("environment", "variable", "proxy"),
    [
        ({}, None, None),
        ({"HTTPS_PROXY": PROXY}, "HTTPS_PROXY", PROXY),
        ({"HTTP_PROXY": PROXY}, None, None),
        ({"ALL_PROXY": PROXY}, "ALL_PROXY", PROXY),
        ({"all_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, "HTTPS_PROXY", "http://other:1"),
        ({"https_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, "https_proxy", PROXY),
        ({"https_proxy": "", "HTTPS_PROXY": PROXY}, None, None),  # switched off, as for curl and Python
        ({"HTTPS_PROXY": "proxy.lan:3128"}, "HTTPS_PROXY", PROXY),
        ({"HTTPS_PROXY": "HTTP://proxy.lan:3128/"}, "HTTPS_PROXY", PROXY),
        ({"ALL_PROXY": "socks5h://me:word@proxy.lan"}, "ALL_PROXY", "socks5h://me:word@proxy.lan:1080"),
    ],
)
def test_the_variable_of_the_scheme_comes_before_that_for_all(
    environment: dict[str, str], variable: str | None, proxy: str | None
) -> None:
    found = find_proxy(URL, environment)
    assert (found and found.variable, found and found.url) == (variable, proxy)


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_exempted"),
    [
        ("*", URL, True),
        ("other.org, *", URL, True),
        ("api.example.com", URL, True),
        ("API.Example.COM", URL, True),
        ("example.com", URL, True),
        ("example.com", "https://example.com./v1", True),
        (".example.com", URL, True),
        (".example.com", "https://example.com/v1", True),
        ("*.example.com", URL, True),
        ("example.com other.org", "https://other.org/v1", True),
        ("ample.com", URL, False),
        ("example.com.evil.org", URL, False),
        ("", URL, False),
        (",, .", URL, False),
        ("example.com:443", URL, True),
        ("example.com:8443", URL, False),
        ("example.com:8443", "https://example.com:8443/v1", True),
        ("localhost", "http://localhost:11434/v1", True),
        ("localhost:80", "http://localhost:11434/v1", False),
        ("127.0.0.1", "http://127.0.0.1:11434/v1", True),
        ("127.0.0.1:11434", "http://127.0.0.1:11434/v1", True),
        ("127.0.0.1:80", "http://127.0.0.1:11434/v1", False),
        ("127.0.0.1", "http://127.0.0.11/v1", False),
        ("0.0.1", "http://127.0.0.1/v1", False),
        ("10.0.0.0/8", "http://10.1.2.3/v1", True),
        ("10.0.0.0/8", "http://11.1.2.3/v1", False),
        ("::1", "http://[::1]:8000/v1", True),
        ("[::1]", "http://[::1]:8000/v1", True),
        ("[::1]:8000", "http://[::1]:8000/v1", True),
        ("[::1]:80", "http://[::1]:8000/v1", False),
        ("fd00::/8", "http://[fd12::3]/v1", True),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/v1", True),
        ("10.0.0.0/99 example.com", URL, True),  # what cannot be read exempts nothing
        ("10.0.0.0/99", "http://10.1.2.3/v1", False),
    ],
)
def test_a_host_that_no_proxy_names_is_exempted(no_proxy: str, url: str, is_exempted: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        found = find_proxy(url, {"ALL_PROXY": PROXY, name: no_proxy})
        assert (found is None) == is_exempted


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "socks://127.0.0.1:1080",
            "socks:// proxies are not supported; write one of http://, https://, socks5://, socks5h://",
        ),
        ("socks4://127.0.0.1", "socks4:// proxies are not supported; write one of http://, https://, socks5://, socks5h://"),
        ("pass word://x", "such proxies are not supported; write one of http://, https://, socks5://, socks5h://"),
        ("http://", "is not the address of a proxy; write it like http://127.0.0.1:8080"),
        ("socks5://me:secret@", "is not the address of a proxy; write it like socks5://127.0.0.1:8080"),
        ("http://proxy:secret", "is not the address of a proxy; write it like http://127.0.0.1:8080"),
        ("http://proxy:0", "is not the address of a proxy; write it like http://127.0.0.1:8080"),
        ("http://[::1", "is not the address of a proxy; write it like http://127.0.0.1:8080"),
        ("http://a b", "is not the address of a proxy; write it like http://127.0.0.1:8080"),
    ],
)
def test_what_is_no_proxy_is_named_with_its_variable_and_without_its_value(value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_proxy(URL, {"HTTPS_PROXY": value})
    assert str(caught.value) == f"HTTPS_PROXY: {problem}"
    assert find_proxy(URL, {"HTTPS_PROXY": value, "NO_PROXY": "example.com"}) is None


def test_a_socks_proxy_without_its_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(
        ConfigError, match=r"ALL_PROXY: a SOCKS proxy needs the package no_such_package: pip install .*\[socks\]"
    ):
        find_proxy(URL, {"ALL_PROXY": "socks5://127.0.0.1:1080"}, socks_package="no_such_package")


def test_the_password_of_a_proxy_is_not_in_its_repr() -> None:
    found = find_proxy(URL, {"ALL_PROXY": "http://me:secret@proxy.lan:3128"})
    assert repr(found) == "EnvironmentProxy(variable='ALL_PROXY')"
