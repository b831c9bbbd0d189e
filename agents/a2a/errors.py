"""The errors of a remote agent, each as one line for the person who asked."""

from __future__ import annotations

from spade_coreason import CoReasonError


class RemoteAgentError(CoReasonError):
    """A request to a remote agent failed. The text is for the person who asked, and names the agent.

    If `is_transient` is true, the same request may succeed later, after `retry_after_s` seconds if the agent gave a time. If
    `was_not_sent` is true, the agent did not get it. `remedy` is for the operator.
    """

    def __init__(
        self,
        problem: str,
        *,
        is_transient: bool = False,
        was_not_sent: bool = False,
        retry_after_s: float | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(problem)
        self.is_transient = is_transient
        self.was_not_sent = was_not_sent
        self.retry_after_s = retry_after_s
        self.remedy = remedy


class UnusableAnswerError(CoReasonError):
    """An answer of a remote agent is not used. The text says why, and begins with "it"."""


class TaskLostError(RemoteAgentError):
    """The remote agent does not know the task."""
