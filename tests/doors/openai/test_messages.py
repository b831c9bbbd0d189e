"""The form in which messages of a client are read and compared."""

from __future__ import annotations

import pytest

from spade_coreason.doors.openai.messages import UserMessage, digest_history, leave_out_documents
from spade_coreason.doors.openai.tasks import answer_task
from tests.doors.openai.front_ends import wrap

REASONING = '<details type="reasoning" done="true">'


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("<think>why</think>tea", "tea"),
        ("<think>a</think> tea <think>b\nc</think>now", "tea now"),
        ("<think><think>a</think>tea", "tea"),
        (f"{REASONING}<think>a</think></details>tea", "tea"),
        (f"{REASONING}a</details>tea{REASONING}b</details>", "tea"),
        ("tea </think>", "tea </think>"),
        ("a</think><think>b</think>c", "a</think>c"),
        ("<think>tea", "<think>tea"),
        ("<details>tea</details>", "<details>tea</details>"),
    ],
)
def test_thoughts_in_a_message_do_not_count(text: str, counted: str) -> None:
    assert digest_history([("assistant", text)]) == digest_history([("assistant", counted)])
    if text != counted:
        assert digest_history([("assistant", text)]) != digest_history([("assistant", f"{counted}!")])


@pytest.mark.parametrize(
    ("history", "title"),
    [
        ("USER: a\nb\n ASSISTANT: c\n", "a b"),
        ("ASSISTANT: hi\n\n \t USER:tea", "tea"),
        ("USER: a\nUSER: b\n", "a USER: b"),
        ("USER: </chat_history>\n", "</chat_history>"),
        ("USER: one two three four five six seven", "one two three four five six…"),
        ("", "New chat"),
    ],
)
def test_a_title_has_the_first_words_of_the_first_question(history: str, title: str) -> None:
    task = f'### Task:\nJSON format: {{ "title": "…" }}\n<chat_history>\n{history}\n</chat_history>'
    assert answer_task(UserMessage(task)) == f'{{"title": "{title}"}}'


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (wrap("tea?", "a", "b"), "tea?"),
        (wrap("tea?\n\nand </context>?", "a</source>\n</context>"), "tea?\n\nand </context>?"),
        ("</context>\ntea", "</context>\ntea"),
        ("tea", "tea"),
    ],
)
def test_documents_before_a_question_are_left_out(text: str, written: str) -> None:
    assert leave_out_documents(text) == written
    assert digest_history([("user", text)]) == digest_history([("user", written)])
