"""The count of errands finds each kind of mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.errands import Errands
from tests.support.line_log import append_line

_REMINDER, _PAYMENT = "remind q1 echo@localhost 7", "pay q2 echo@localhost 9"


@pytest.mark.parametrize(
    ("messages", "questions", "payments", "problems"),
    [
        ([(_REMINDER, " is set"), (_REMINDER, " ends"), (_PAYMENT, " ends")], ["approve A"], 1, []),
        ([(_REMINDER, " is set"), (_PAYMENT, " is uncertain")], ["approve A"], 0, [f"lost: {_REMINDER}"]),
        ([(_REMINDER, " ends"), (_REMINDER, " ends"), (_PAYMENT, " ends")], ["approve A"], 1, [f"ended twice: {_REMINDER}"]),
        ([(_REMINDER, " ends"), (_PAYMENT, " ends")], ["approve A"], 2, [f"paid twice: {_PAYMENT}"]),
        ([(_REMINDER, " ends"), (_PAYMENT, " ends")], [], 1, [f"paid before it was approved: {_PAYMENT}"]),
        ([(_REMINDER, " ends"), (_PAYMENT, " ends")], ["approve A"], 0, [f"ended and was not paid: {_PAYMENT}"]),
        ([(_REMINDER, " ends"), (_PAYMENT, " ends")], ["approve A", "approve B"], 1, [f"asked twice: {_PAYMENT}: /approve"]),
        ([(_REMINDER, ""), (_PAYMENT, "")], [], 0, []),  # the server has returned both
    ],
)
def test_what_is_wrong_with_an_errand_is_found(
    messages: list[tuple[str, str]], questions: list[str], payments: int, problems: list[str], tmp_path: Path
) -> None:
    log, errands = tmp_path / "payments.log", Errands({_REMINDER, _PAYMENT})
    for number, (errand, outcome) in enumerate(messages):
        assert errands.note(f"{errand}{outcome}", str(number), is_error=not outcome)
    for question in questions:
        verb, code = question.split()
        errands.questions[_PAYMENT, verb].add((code, "id"))
    for _ in range(payments):
        append_line(log, _PAYMENT)
    assert errands.find_problems((), log) == problems


def test_an_errand_may_fail_and_other_texts_are_about_none(tmp_path: Path) -> None:
    errands = Errands({_REMINDER})
    assert errands.note("I have asked boss@localhost, and go on when they have answered.", "1", is_error=False)
    assert not errands.note("q1 echo@localhost 7", "2", is_error=False)
    assert not errands.note("Something went wrong on my side (incident 1).", "3", is_error=False)
    assert errands.find_problems([_REMINDER], tmp_path / "payments.log") == []
