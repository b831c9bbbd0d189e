"""The notifications by which people hear of a question: that it is asked, half over, taken back, or that no one may decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from ...domain.identifiers import NoticeKind, derive_notice_id
from ...domain.questions import APPROVAL, ApprovalPolicy, describe_approval, describe_question
from ...domain.texts.approval_mark import MARK, quote_forgeries
from ...domain.texts.durations import format_duration
from ...domain.texts.json_text import dump_json
from ...domain.texts.translation import N_, translate, use_language
from ...storage import AgentRepository, StoredQuestion, Task, from_micros
from ..languages import PersonLanguages

_NEWS: Mapping[NoticeKind, str] = {
    "end": N_("The question {code} was taken back. You need not answer it."),
    "stuck": N_("No one who was asked may decide the approval {id} any more. An operator can ask others with /reassign {id}"),
}


class QuestionNotices:
    """Makes the notices of one agent, each in the language of its person."""

    def __init__(
        self, repository: AgentRepository, languages: PersonLanguages, policy: ApprovalPolicy, clock: Callable[[], datetime]
    ) -> None:
        self._notifications = repository.notifications
        self._languages = languages
        self._page = policy.page
        self._clock = clock

    def make(self, question: StoredQuestion, person: str, kind: NoticeKind) -> Task:
        """Return the notification by which a person hears of a question."""
        with use_language(self._languages.of_person(person)):
            text, choices = self._describe(question, kind)
            if kind == "reminder":
                mark = f"{MARK} " if question.kind == APPROVAL else ""
                text = f"{mark}{translate('A reminder: this still waits for you.')}\n\n{text}"
        content = dump_json({"question": text, "choices": choices, "request": question.request})
        root = question.requester if question.requester != person else ""
        notice_id = str(derive_notice_id(question.notice_name, person, kind))
        return self._notifications.make_notification(notice_id, person, question.thread, root, content, self._clock())

    def _describe(self, question: StoredQuestion, kind: NoticeKind) -> tuple[str, list[list[str]]]:
        """Return the text of a question, or the news of it, and its choices: pairs of value and label."""
        if kind in _NEWS:
            return translate(_NEWS[kind], code=question.code, id=question.question_id[:8]), []
        if question.kind != APPROVAL:
            return describe_question(question.text, question.code, question.choices), [
                [f"answer {question.code} {each}", quote_forgeries(each)] for each in question.choices
            ]
        time_left = format_duration((from_micros(question.expires_at) - self._clock()).total_seconds())
        page = self._page
        buttons = [
            [f"/approve {question.code}", translate("Approve")],
            [f"/deny {question.code}", translate("Deny")],
        ]
        return describe_approval(question.text, question.requester, question.code, time_left, page), [] if page else buttons
