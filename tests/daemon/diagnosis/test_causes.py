"""Every cause is whole: a name, something to explain, and advice one can follow at three in the morning."""

import inspect
from pathlib import Path

import pytest

from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes import CAUSES
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.rules import RULES
from support.cases import a_case, a_finding, a_group

RULE_NAMES = {rule.name for rule in RULES}


def test_each_has_a_file_of_its_name_and_none_is_left_out() -> None:
    folder = Path(inspect.getfile(type(CAUSES[0]))).parent
    assert [cause.id for cause in CAUSES] == sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_explains_rules_that_exist_and_advises_whatever_is_known(cause: Cause) -> None:
    assert cause.explains
    assert cause.explains <= RULE_NAMES
    for rule in sorted(cause.explains):
        bare = a_case(a_finding(rule))
        full = a_case(
            a_finding(rule),
            curves={"lr": [1e-3] * 120, "loss": [1.0] * 120, "grad_norm": [1.0] * 120},
            groups=(a_group(weight_decay=0.1),),
            facts={
                "batch_size": 32,
                "dataset_length": 1000,
                "optimizer": "AdamW",
                "num_parameters": 10,
                "dropout": "0.1",
            },
        )
        for case in (bare, full):
            list(cause.weigh(case))
            advice = cause.advise(case)
            assert advice.first_fix
            assert advice.avoid
            assert advice.verify
            assert "nan" not in advice.first_fix.lower().split()
            before_comment = advice.code.partition("  #")[0]
            assert before_comment.count("(") == before_comment.count(")"), advice.code


@pytest.mark.parametrize("rule", sorted(RULE_NAMES))
def test_every_rule_has_a_cause_that_explains_it(rule: str) -> None:
    assert any(rule in cause.explains for cause in CAUSES)


@pytest.mark.parametrize("rule", sorted(RULE_NAMES))
def test_a_finding_alone_leaves_most_unknown(rule: str) -> None:
    """Without numbers, curves and settings nobody can know."""
    diagnosis = diagnose(a_case(a_finding(rule)))

    assert sum(c.confidence for c in diagnosis.causes) + diagnosis.unknown == pytest.approx(1.0)
    assert all(cause.confidence < 0.95 for cause in diagnosis.causes), diagnosis.causes[0]
