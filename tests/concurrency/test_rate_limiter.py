"""The rate limiter: some actions a minute for each key, in bounded memory."""

from __future__ import annotations

from spade_coreason.concurrency import RateLimiter


async def test_each_key_has_its_own_limit() -> None:
    limiter = RateLimiter(2)
    assert [limiter.allow(key) for key in ("ada", "ada", "bob", "ada", "bob", "bob")] == [True, True, True, False, True, False]


async def test_the_key_used_least_recently_is_dropped_above_ten_thousand() -> None:
    limiter = RateLimiter()
    for key in range(10_000):
        assert limiter.allow(str(key))
    assert not limiter.allow("0")  # now "1" is the one used least recently
    assert limiter.allow("new")
    assert [limiter.allow("0"), limiter.allow("1")] == [False, True]
