"""The form in which messages of a client are read and compared."""

from __future__ import annotations

import pytest

from spade_coreason.doors.openai.messages import digest_history
from spade_coreason.doors.openai.tasks import answer_task

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
        ("<chat_history>\nUSER: a\nb\n ASSISTANT: c\n</chat_history>", "a b"),
        ("<chat_history>ASSISTANT: hi\n\n \t USER:tea</chat_history>", "tea"),
        ("<chat_history>USER: a\nUSER: b\n</chat_history>", "a USER: b"),
        ("<chat_history>\nUSER: tea", "New chat"),
        ("", "New chat"),
    ],
)
def test_a_title_has_the_first_words_of_the_first_question(history: str, title: str) -> None:
    assert answer_task(f'### Task:\nAs {{ "title": "…" }}\n{history}') == f'{{"title": "{title}"}}'
