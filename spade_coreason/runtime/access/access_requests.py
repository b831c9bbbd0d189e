"""Access requests: the operators decide about strangers, whom the configuration does not admit."""

from __future__ import annotations

import logging

from ...domain.access import AccessPolicy
from ...domain.callers import is_caller
from ...domain.texts.translation import translate, use_language
from ...storage import ACCESS_SCOPE, AgentRepository, StoredAgent
from ..channels import NoticeSender, OutboundMessage
from ..event_emitter import EventEmitter
from ..languages import PersonLanguages

log = logging.getLogger(__name__)

_OWN_CONTACT = "contact"
_MAX_PENDING = 100
_MAX_REFUSED = 10_000


class AccessRequests:
    """The access requests of one agent, with the stored decisions of its operators.

    Operators are asked only if `access.asks_operators` is True.
    """

    def __init__(
        self,
        access: AccessPolicy,
        repository: AgentRepository,
        agent_name: str,
        notices: NoticeSender,
        languages: PersonLanguages,
    ) -> None:
        self.access = access
        self.languages = languages
        """The languages in which operators and strangers are told."""
        self._repository = repository
        self._agent_name = agent_name
        self._notices = notices
        self._decided: set[str] = set()
        self._rejected: set[str] = set()
        self._own_contacts: set[str] = set()
        self._pending: set[str] = set()
        self._refused: dict[str, None] = {}
        self.decided: EventEmitter[[str, bool]] = EventEmitter()
        """Emitted with a bare JID and True when a person is admitted, False when one is rejected."""
        self.contacts_changed: EventEmitter[[]] = EventEmitter()
        """Emitted when the server has sent a change of the roster."""
        self.access_lost: EventEmitter[[]] = EventEmitter()
        """Emitted when callers may have lost their access with a key."""

    def load(self, stored: StoredAgent) -> None:
        """Take the earlier decisions and refusals, before the agent goes online. Those of this run are newer than `stored`."""
        decisions = {person: one for person, one in stored.admissions.items() if person not in self._decided}
        approved = {person for person, is_admitted in decisions.items() if is_admitted}
        if self.access.operators:
            self.access.approved |= approved
        elif approved:
            text = "%s: there are no operators, so stored admissions (%d) do not count; add one to access.operators"
            log.warning(text, self._repository.agent, len(approved))
        self._rejected |= decisions.keys() - approved
        own_contacts = stored.get_by_holder(ACCESS_SCOPE, _OWN_CONTACT)
        self._own_contacts |= {person for person, value in own_contacts.items() if value == "true"}
        self._refused = dict.fromkeys(stored.refused_people)

    def record_refusal(self, person: str) -> bool:
        """Record that a stranger (a bare JID) is refused.

        Return True if the stranger was told so before, in this run or an earlier one.
        """
        if person in self._refused:
            return True
        if len(self._refused) >= _MAX_REFUSED:
            self._forget_refusal(next(iter(self._refused)))
        self._refused[person] = None
        self._repository.save_refusal(person).on_failed(self._log_failed_write)
        return False

    def note_own_contact(self, person: str) -> None:
        """Note that the agent adds a person or an agent (a bare JID) to its roster, unless the administrator has done so.

        Otherwise the roster would admit them for ever, even after the rule that admitted them is gone.
        """
        if person not in self.access.contacts and person not in self._own_contacts:
            self._own_contacts.add(person)
            self._save_own_contact(person, "true")

    def set_contacts(self, contacts: set[str], removed: set[str], *, is_whole_roster: bool) -> None:
        """Set the contacts (bare JIDs) of the whole roster, or add and remove those that have changed."""
        gone = self._own_contacts - contacts if is_whole_roster else self._own_contacts & removed
        for person in gone:
            self._own_contacts.discard(person)
            self._save_own_contact(person, "false")
        known = set() if is_whole_roster else self.access.contacts - removed
        self.access.contacts = known | (contacts - self._own_contacts)
        self.access.is_known = self.access.is_known or is_whole_roster
        self.contacts_changed.emit()

    def _save_own_contact(self, person: str, value: str) -> None:
        self._repository.save_variable(ACCESS_SCOPE, person, _OWN_CONTACT, value).on_failed(self._log_failed_contact)

    def _log_failed_contact(self, error: BaseException) -> None:
        log.error("%s: cannot store that the agent itself added a contact to its roster: %s", self._repository.agent, error)

    def ask_operators(self, person: str) -> bool:
        """Ask the operators once to admit or reject a stranger (a bare JID).

        Return True if they are asked now or were asked and have not decided.
        """
        if not self.access.asks_operators or "@" not in person or person in self._rejected or is_caller(person):
            return False
        if person in self._pending:
            return True
        if len(self._pending) >= _MAX_PENDING:
            log.warning("%s: sends no more access requests to operators: %d are waiting", self._repository.agent, _MAX_PENDING)
            return False
        self._pending.add(person)
        log.info("%s: sent an access request of %s to the operators", self._repository.agent, person)
        self._notices.send([self._encode_question(operator, person) for operator in sorted(self.access.operators)])
        return True

    def _encode_question(self, operator: str, person: str) -> OutboundMessage:
        with use_language(self.languages.of_person(operator)):
            text = translate(
                "{person} wants to talk to {agent}.\nWrite /admit {person} or /reject {person}.",
                person=person,
                agent=self._agent_name,
            )
            choices = ((f"/admit {person}", translate("Admit")), (f"/reject {person}", translate("Reject")))
        return self._notices.encode_notice(operator, text, choices)

    def _forget_refusal(self, person: str) -> None:
        del self._refused[person]
        self._repository.delete_refusal(person).on_failed(self._log_failed_write)

    def _log_failed_write(self, error: BaseException) -> None:
        log.warning("%s: cannot store that a stranger was refused, who may be told again: %s", self._repository.agent, error)

    @property
    def pending(self) -> list[str]:
        """The strangers (bare JIDs) about whom the operators were asked and have not decided, in this run."""
        return sorted(self._pending)

    async def decide(self, person: str, is_admitted: bool) -> bool:
        """Admit a person (a bare JID) and tell them, or reject them. Return True if they may talk to the agent now.

        Without operators an admission does not count, now and after a start.
        """
        await self._repository.save_admission(person, is_admitted)
        self._decided.add(person)
        self._pending.discard(person)
        (self._rejected.discard if is_admitted else self._rejected.add)(person)
        (self.access.approved.add if is_admitted and self.access.operators else self.access.approved.discard)(person)
        log.info("%s: %s is %s", self._repository.agent, person, "admitted" if is_admitted else "rejected")
        self.decided.emit(person, is_admitted)
        if is_admitted and person in self._refused:
            self._forget_refusal(person)  # a later rejection is told again
        is_allowed = self.access.is_allowed(person)
        if is_admitted and is_allowed:
            with use_language(self.languages.of_person(person)):
                text = translate("You may talk to {agent} now.", agent=self._agent_name)
            self._notices.send([self._notices.encode_notice(person, text)])
        return is_allowed
