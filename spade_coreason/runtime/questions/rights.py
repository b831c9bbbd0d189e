"""The people who may answer: those with access, and for an approval those of its group, but never its requester."""

from __future__ import annotations

from ...domain.access import AccessPolicy
from ...domain.questions import APPROVAL, ApprovalPolicy
from ...storage import StoredQuestion


class AnswerRights:
    """The rights of people to answer the questions of one agent, as they are now."""

    def __init__(self, access: AccessPolicy, approvals: ApprovalPolicy) -> None:
        self._access = access
        self.approvals = approvals
        """The rules of approvals."""

    def find_approvers(self, group: str | None, requester: str) -> tuple[str, ...]:
        """Return the people (bare JIDs) who may approve a request of a person. ValueError, with the remedy, without any."""
        if self.approvals.refusal:
            raise ValueError(self.approvals.refusal)
        group = group or self.approvals.approvers
        people = self.approvals.find_approvers(group)
        others = tuple(person for person in people if person != requester and self._access.is_allowed(person))
        if not others:
            where = f"access.groups.{group}" if group else "access.operators"
            raise ValueError(f"no one but {requester or 'the agent'} may approve this; add an account with access to {where}")
        return others

    def may_answer(self, question: StoredQuestion, person: str) -> bool:
        """Return True if a person (a bare JID) who was asked still has the right to answer."""
        if question.kind != APPROVAL:
            return self._access.is_allowed(person)
        try:
            return person in self.find_approvers(question.approvers, question.requester)
        except ValueError:
            return False
