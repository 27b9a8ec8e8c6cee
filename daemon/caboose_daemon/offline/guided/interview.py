"""The guided conversation: the symptom, the known facts, the open questions, and the resulting causes.

Design
------
Input and output are parameters, so that a terminal, a pipe and a test work alike. Every question may be left
unanswered. An answer becomes a finding of the incident or a setting of the run, and the diagnosis is the same one that
judges runs without questions.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.sample_history import InputRange
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident, with_derived_fields
from caboose_daemon.offline.guided.checks import checks
from caboose_daemon.offline.guided.known import case_of, declared, fitting, level, reported, seen_in, sign
from caboose_daemon.offline.guided.questions import INPUTS, LEVEL, QUESTIONS, Answer, Question
from caboose_daemon.offline.guided.referrals import referral
from caboose_daemon.offline.guided.symptoms import OTHER, SYMPTOMS, Symptom, described, find_all
from caboose_daemon.offline.runs.run import Run
from caboose_daemon.out.api import json_shapes
from caboose_wire import Group
from caboose_wire.fields import Scalar

Ask = Callable[[str], str]
Show = Callable[[str], None]
NAMES = ", ".join(symptom.name for symptom in SYMPTOMS)
BEGAN = Question("At which step did it begin?", "number", (), name="began")
SHOWN = (
    "optimizer",
    "lr",
    "weight_decay",
    "batch_size",
    "dataset_length",
    "num_classes",
    "num_trainable",
    "precision",
    "scheduler",
    "total_steps",
)


class BadAnswer(ValueError):
    """What was given cannot be used; the message is one line with the way out."""


@dataclass
class Interview:
    """One conversation; what is given beforehand is not asked."""

    ask: Ask
    show: Show
    run: Run | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    """Answers by key, as text."""
    given_symptoms: Sequence[str] = ()
    is_silent: bool = False
    """Whether nothing is asked: what is not given is not known."""
    answers: dict[str, Answer] = field(default_factory=dict)
    questions: list[tuple[str, Answer]] = field(default_factory=list)
    symptoms: tuple[Symptom, ...] = ()
    words: str = ""
    """The symptom in the user's own words."""

    def hold(self) -> dict[str, Any]:
        """Runs the conversation; returns the answer of `caboose diagnose` plus the questions and answers."""
        symptoms = self.symptoms = self._which()
        incident = fitting(self.run, symptoms)
        seen = [] if incident is None else seen_in(incident, symptoms)
        if incident is None:
            incident = self._declared()
        else:
            self.show(f"Found in the run: {incident.rule} from step {incident.onset_step:,}: {incident.summary}")
            incident = _with_reported(incident, [one for one in symptoms if one not in seen])
        case = case_of(self.run, incident)
        known = dict(_known(case))
        if known:
            self.show("Known from the run: " + ", ".join(f"{name} {value}" for name, value in known.items()))
        case = self._filled(case)
        self._refuse_unknown()
        diagnosed = msgspec.structs.replace(case.incident, diagnosis=diagnose(case, with_possible=True))
        return {
            "job": diagnosed.job,
            "state": "as described" if self.run is None else self.run.state,
            "health": str(diagnosed.severity),
            "step": self.run.last_step if self.run is not None else diagnosed.last_step,
            "num_open": int(diagnosed.is_open),
            "incidents": [json_shapes.incident(diagnosed)],
            "guided": {
                "symptom": symptoms[0].name,
                "symptoms": [symptom.name for symptom in symptoms],
                "words": self.words,
                "is_seen": bool(seen),
                "known": known,
                "answers": self.answers,
                "questions": [{"question": text, "answer": answer} for text, answer in self.questions],
                "checks": list(checks(self.answers)),
                "referral": referral(self.words),
            },
        }

    def _which(self) -> tuple[Symptom, ...]:
        if self.given_symptoms:
            found = self._understood(" ".join(self.given_symptoms))
            if not found:
                raise BadAnswer(f"--symptom {' '.join(self.given_symptoms)}: give {NAMES}, or other words for it")
            return found
        self.show("What is wrong? Several are possible, such as 5,7.")
        for number, symptom in enumerate(SYMPTOMS, 1):
            self.show(f"  {number:2d}  {symptom.text}")
        self.show(f"   or describe it in your own words ({OTHER}: ...)")
        while True:
            found = self._understood(self.ask(f"Number, 1 to {len(SYMPTOMS)}"))
            if found:
                return found
            self.show(f"  Please give some of the numbers, some of {NAMES}, or describe it in other words.")

    def _understood(self, text: str) -> tuple[Symptom, ...]:
        """The symptoms of an answer: numbers and names, or words that point to some."""
        found = find_all(text)
        if found:
            return found
        words = text.strip().removeprefix(OTHER).lstrip(" :,").strip()
        found = described(words)
        if found:
            self.words = words
            self.show("Understood as: " + "; ".join(symptom.text for symptom in found))
            if advice := referral(words):
                self.show(advice)
        elif advice := referral(words):
            raise BadAnswer(advice)
        return found

    def _declared(self) -> Incident:
        name, last = (self.run.name, self.run.last_step) if self.run is not None else ("this run", 0)
        if self.run is not None:
            self.show(f"No rule found this in {name}: the diagnosis relies on your answers.")
        step = self._answer(BEGAN)
        return declared(self.symptoms, last if step is None else int(float(step)), name)

    def _filled(self, case: Case) -> Case:
        """The case with the answers added."""
        names = {symptom.name for symptom in self.symptoms}
        asked = [question for question in QUESTIONS if names & set(question.symptoms) and not question.is_known(case)]
        num = 0 if self.is_silent else sum(question.key not in self.given for question in asked)
        if num:
            self.show(f"{num} question{'s' if num > 1 else ''}; press return if you do not know:")
        for number, question in enumerate(asked, 1):
            answer = self._answer(question)
            if answer is not None:
                self.answers[question.key] = answer
                self.questions.append((question.text, answer))
                case = _with(case, question, answer, len(self.symptoms) + number)
        return case

    def _refuse_unknown(self) -> None:
        known = {question.key for question in QUESTIONS} | {BEGAN.key}
        for key in self.given:
            if key not in known:
                raise BadAnswer(f"--answer {key}=...: no such question; known: {', '.join(sorted(known))}")

    def _answer(self, question: Question) -> Answer | None:
        if question.key in self.given:
            try:
                return question.parse(self.given[question.key])
            except ValueError as error:
                raise BadAnswer(f"--answer {question.key}={self.given[question.key]}: give {error}") from None
        if self.is_silent:
            return None
        while True:
            text = self.ask(question.text)
            if text.strip() in ("", "?"):
                return None
            try:
                return question.parse(text)
            except ValueError as error:
                self.show(f"  Please give {error}.")


def _with_reported(incident: Incident, symptoms: Sequence[Symptom]) -> Incident:
    """The incident with the symptoms that only the user has seen."""
    if not symptoms:
        return incident
    added = (reported(one, incident.onset_step, number) for number, one in enumerate(symptoms))
    grown = msgspec.structs.replace(incident, episodes=(*incident.episodes, *added))
    return with_derived_fields(grown, lambda rank: "")


def _with(case: Case, question: Question, answer: Answer, number: int) -> Case:
    if question.setting == LEVEL:
        return dataclasses.replace(case, recent=level(case.onset, float(answer)))
    if question.setting == INPUTS:
        extent = InputRange(case.incident.attempt, case.onset, -float(answer), float(answer))
        return dataclasses.replace(case, input_ranges=(extent,))
    if not question.rule:
        return _with_setting(case, question.setting, answer)
    if question.amend is not None:
        episodes = tuple(_amended(m, question, answer) for m in case.incident.episodes)
        return dataclasses.replace(case, incident=msgspec.structs.replace(case.incident, episodes=episodes))
    if answer in (False, 0.0):  # a checked "no" counts like a quiet rule
        return dataclasses.replace(
            case, abstaining={rule: why for rule, why in case.abstaining.items() if rule != question.rule}
        )
    share = isinstance(answer, float) and question.kind == "share"
    text = question.summary.format(f"{answer:.0%}" if share else f"{answer:g}" if isinstance(answer, float) else answer)
    values = question.values(answer)
    found = sign(question.rule, case.onset, text, number=number, values=values, phase=question.phase)
    grown = msgspec.structs.replace(case.incident, episodes=(*case.incident.episodes, found))
    return dataclasses.replace(case, incident=with_derived_fields(grown, lambda rank: ""))


def _amended(member: Episode, question: Question, answer: Answer) -> Episode:
    if member.rule != question.rule or question.amend is None:
        return member
    found = question.amend(member.worst, answer)
    return dataclasses.replace(member, worst=found, last=found)


def _with_setting(case: Case, name: str, answer: Answer) -> Case:
    value: Scalar = int(answer) if isinstance(answer, float) and answer.is_integer() and name != "lr" else answer
    first = case.groups[0] if case.groups else Group("all", "", {})
    group = Group(first.name, str(value) if name == "optimizer" else first.optimizer, {**first.settings, name: value})
    return dataclasses.replace(case, config={**case.config, name: value}, groups=(group, *case.groups[1:]))


def _known(case: Case) -> Iterator[tuple[str, str]]:
    for name in SHOWN:
        value = case.optimizer if name == "optimizer" else case.lr if name == "lr" else case.hyper(name)
        value = case.setting(name) if value is None else value
        value = case.fact(name) if value is None else value
        if value not in (None, ""):
            yield name, f"{value:g}" if isinstance(value, float) else str(value)
