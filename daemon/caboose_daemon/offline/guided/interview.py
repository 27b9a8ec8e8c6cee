"""The guided conversation: the symptom, the known facts, the open questions, and the resulting causes.

Design
------
Input and output are parameters, so that a terminal, a pipe and a test work alike. Every question may be left
unanswered. An answer becomes a finding of the incident or a setting of the run, and the diagnosis is the same one that
judges runs without questions.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident, with_derived_fields
from caboose_daemon.offline.guided.known import case_of, declared, fitting, level, sign
from caboose_daemon.offline.guided.questions import LEVEL, QUESTIONS, Answer, Question
from caboose_daemon.offline.guided.symptoms import SYMPTOMS, Symptom, find
from caboose_daemon.offline.runs.run import Run
from caboose_daemon.out.api import json_shapes
from caboose_wire import Group
from caboose_wire.fields import Scalar

Ask = Callable[[str], str]
Show = Callable[[str], None]
SHOWN = ("optimizer", "lr", "weight_decay", "batch_size", "dataset_length", "num_classes", "num_trainable", "precision")


@dataclass
class Interview:
    """One conversation."""

    ask: Ask
    show: Show
    run: Run | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    symptom: Symptom | None = None
    is_seen: bool = False
    """Whether the run itself shows the symptom."""

    def hold(self) -> dict[str, Any]:
        """Runs the conversation; returns the answer of `caboose diagnose` plus the questions and answers."""
        symptom = self.symptom = self._which()
        incident = fitting(self.run, symptom)
        self.is_seen = incident is not None
        if incident is None:
            incident = self._declared(symptom)
        else:
            self.show(f"Found in the run: {incident.rule} from step {incident.onset_step:,}: {incident.summary}")
        case = case_of(self.run, incident)
        known = dict(_known(case))
        if known:
            self.show("Known from the run: " + ", ".join(f"{name} {value}" for name, value in known.items()))
        case = self._filled(case, symptom)
        diagnosed = msgspec.structs.replace(case.incident, diagnosis=diagnose(case, with_possible=True))
        return {
            "job": diagnosed.job,
            "state": "as described" if self.run is None else self.run.state,
            "health": str(diagnosed.severity),
            "step": self.run.last_step if self.run is not None else diagnosed.last_step,
            "num_open": int(diagnosed.is_open),
            "incidents": [json_shapes.incident(diagnosed)],
            "guided": {"symptom": symptom.name, "is_seen": self.is_seen, "known": known, "answers": self.answers},
        }

    def _which(self) -> Symptom:
        self.show("What is wrong?")
        for number, symptom in enumerate(SYMPTOMS, 1):
            self.show(f"  {number:2d}  {symptom.text}")
        while True:
            found = find(self.ask(f"Number, 1 to {len(SYMPTOMS)}"))
            if found is not None:
                return found
            self.show(f"  Please give one of the numbers, or one of {', '.join(s.name for s in SYMPTOMS)}.")

    def _declared(self, symptom: Symptom) -> Incident:
        name, last = (self.run.name, self.run.last_step) if self.run is not None else ("this run", 0)
        if self.run is not None:
            self.show(f"No rule found this in {name}: the diagnosis relies on your answers.")
        question = Question("At which step did it begin?", "number", ())
        step = self._answer(question)
        return declared(symptom, last if step is None else int(float(step)), name)

    def _filled(self, case: Case, symptom: Symptom) -> Case:
        """The case with the answers added."""
        asked = [
            question for question in QUESTIONS if symptom.name in question.symptoms and not question.is_known(case)
        ]
        if asked:
            self.show(f"{len(asked)} question{'s' if len(asked) > 1 else ''}; press return if you do not know:")
        for number, question in enumerate(asked, 1):
            answer = self._answer(question)
            if answer is not None:
                self.answers[question.key] = answer
                case = _with(case, question, answer, number)
        return case

    def _answer(self, question: Question) -> Answer | None:
        while True:
            text = self.ask(question.text)
            if text.strip() in ("", "?"):
                return None
            try:
                return question.parse(text)
            except ValueError as error:
                self.show(f"  Please give {error}.")


def _with(case: Case, question: Question, answer: Answer, number: int) -> Case:
    if question.setting == LEVEL:
        return dataclasses.replace(case, recent=level(case.onset, float(answer)))
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
