"""The signatures of webhooks, with the vectors of both documents."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook
from starlette.datastructures import Headers

from spade_coreason.doors.webhooks.signatures import (
    ClockError,
    SignatureError,
    find_kind,
    sign_github,
    sign_standard,
    verify,
)
from spade_coreason.storage import decode_webhook_secret, make_webhook_secret

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
BODY = b'{"type": "build.done"}'


def signed(key: bytes = KEY, message_id: str = "msg_1", at: datetime = NOW, body: bytes = BODY) -> dict[str, str]:
    """Return the headers of a Standard Webhook."""
    timestamp = str(int(at.timestamp()))
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign_standard(key, message_id, timestamp, body),
    }


def check(headers: dict[str, str], body: bytes = BODY, keys: tuple[bytes | None, bytes | None] = (KEY, None)) -> int:
    return verify("standard", Headers(headers), body, keys, NOW)


def test_the_example_of_github_is_signed_as_its_page_says() -> None:
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries#testing-the-webhook-payload-validation
    key = decode_webhook_secret("github", "It's a Secret to Everybody")
    signature = sign_github(key, b"Hello, World!")
    assert signature == "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert verify("github", Headers({"X-Hub-Signature-256": signature}), b"Hello, World!", (None, key), NOW) == 1


def test_the_example_of_standard_webhooks_is_signed_as_its_libraries_do() -> None:
    # https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
    key = decode_webhook_secret("standard", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign_standard(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_library_standardwebhooks_and_this_one_understand_each_other() -> None:
    secret = make_webhook_secret("standard")
    key, library = decode_webhook_secret("standard", secret), Webhook(secret)
    made = library.sign("msg_1", NOW, BODY.decode())
    assert check({**signed(key), "webhook-signature": made}, keys=(key, None)) == 0
    library.verify(BODY, signed(key, at=datetime.now(UTC)))


def test_one_of_several_signatures_is_enough_and_either_key() -> None:
    right, wrong = signed()["webhook-signature"], signed(OTHER_KEY)["webhook-signature"]
    for text in (f"{wrong} {right}", f"{right} {wrong}", f"v1a,abc {right}", f"v2,x v1, {right}"):
        assert check({**signed(), "webhook-signature": text}) == 0
    assert check(signed(OTHER_KEY), keys=(KEY, OTHER_KEY)) == 1


@pytest.mark.parametrize(
    "signature",
    [
        "",
        " ",
        "v1",
        "v1,",
        "v2,{right}",
        "V1,{right}",
        "v1a,{right}",
        "v1,{right}x",
        "v1,{right}=",
        "v1, {right}",
        "v1,\t{right}",
        "v1,{urlsafe}",
        "{right}",
        "v1,\u00e4{right}",
        "v1;{right}",
        "v1,x," + "{right}",
        "v1,x " * 8 + "v1,{right}",
    ],
)
def test_a_signature_in_another_form_is_wrong(signature: str) -> None:
    right = sign_standard(KEY, "msg_1", signed()["webhook-timestamp"], BODY).removeprefix("v1,")
    urlsafe = base64.urlsafe_b64encode(base64.b64decode(right)).decode() + "_"
    with pytest.raises(SignatureError):
        check({**signed(), "webhook-signature": signature.format(right=right, urlsafe=urlsafe)})


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_each_header_has_to_be_there_once(missing: str) -> None:
    headers = signed()
    with pytest.raises(SignatureError):
        check({name: value for name, value in headers.items() if name != missing})
    twice = [(name.encode(), value.encode()) for name, value in headers.items()] * 2
    with pytest.raises(SignatureError):
        verify("standard", Headers(raw=twice), BODY, (KEY, None), NOW)


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "ä", "x" * 257, "a\n"])
def test_an_id_with_a_dot_or_a_space_is_refused(message_id: str) -> None:
    with pytest.raises(SignatureError):
        check(signed(message_id=message_id))


def test_what_is_signed_has_one_reading_only() -> None:
    """`id.timestamp.body` could be cut at another dot, if an id or a body may have one."""
    timestamp = str(int(NOW.timestamp()))
    signature = sign_standard(KEY, "a", timestamp, f"{timestamp}.pay".encode())
    headers = {"webhook-id": f"a.{timestamp}", "webhook-timestamp": timestamp, "webhook-signature": signature}
    with pytest.raises(SignatureError):
        check(headers, b"pay")


def test_a_time_in_milliseconds_is_told_by_its_clock() -> None:
    timestamp = str(int(NOW.timestamp() * 1000))
    signature = sign_standard(KEY, "msg_1", timestamp, BODY)
    with pytest.raises(ClockError):
        check({"webhook-id": "msg_1", "webhook-timestamp": timestamp, "webhook-signature": signature})


@pytest.mark.parametrize(
    "timestamp", ["", "soon", "-1", "+1795780800", "1795780800.0", "1_795_780_800", "\u00b9795780800", "9" * 40]
)
def test_a_time_that_is_no_number_is_refused(timestamp: str) -> None:
    signature = sign_standard(KEY, "msg_1", timestamp, BODY)
    with pytest.raises(SignatureError):
        check({"webhook-id": "msg_1", "webhook-timestamp": timestamp, "webhook-signature": signature})


@pytest.mark.parametrize(("seconds", "is_accepted"), [(300, True), (-300, True), (301, False), (-301, False), (86_400, False)])
def test_a_time_may_differ_by_five_minutes_both_ways(seconds: int, is_accepted: bool) -> None:
    headers = signed(at=NOW + timedelta(seconds=seconds))
    if is_accepted:
        check(headers)
        return
    with pytest.raises(ClockError):
        check(headers)


def test_no_key_signs_nothing() -> None:
    for empty in (b"", bytes(32)):
        for keys in ((None, None), (KEY, None)):
            with pytest.raises(SignatureError):
                check(signed(empty), keys=keys)
            with pytest.raises(SignatureError):
                verify("github", Headers({"x-hub-signature-256": sign_github(empty, BODY)}), BODY, keys, NOW)


@pytest.mark.parametrize(
    "signature", ["", "sha256=", "sha1=x", "SHA256={right}", "{right}", "sha256={upper}", "sha256= {right}"]
)
def test_a_signature_of_github_in_another_form_is_wrong(signature: str) -> None:
    right = sign_github(KEY, BODY).removeprefix("sha256=")
    headers = Headers({"x-hub-signature-256": signature.format(right=right, upper=right.upper())})
    with pytest.raises(SignatureError):
        verify("github", headers, BODY, (KEY, None), NOW)


def test_the_form_is_that_of_the_headers() -> None:
    assert find_kind(Headers({"X-Hub-Signature-256": "x"})) == "github"
    assert find_kind(Headers({"X-Hub-Signature-256": "x", "webhook-id": "y"})) == "standard"
    assert find_kind(Headers({})) == "standard"


@pytest.mark.parametrize(
    ("kind", "secret"),
    [
        ("standard", ""),
        ("standard", "whsec_"),
        ("standard", "whsec_c2hvcnQ="),
        ("standard", "whsec_not base64 at all, and long enough to be one"),
        ("standard", "whsec_" + base64.b64encode(b"x" * 65).decode()),
        ("standard", "whsec_" + "é" * 40),
        ("github", ""),
        ("github", "short"),
        ("github", " " * 20),
        ("github", "a secret that ends with a space "),
        ("github", "x" * 257),
    ],
)
def test_a_secret_that_is_too_short_or_malformed_is_refused(kind: str, secret: str) -> None:
    with pytest.raises(ValueError, match="it "):
        decode_webhook_secret(kind, secret)  # type: ignore[arg-type] # one of the two kinds
