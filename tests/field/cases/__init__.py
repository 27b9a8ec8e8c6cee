"""All cases by name."""

from cases import (
    examples,
    frameworks,
    further,
    generative,
    hugging_face,
    language_models,
    reinforcement,
    vision_and_graphs,
)
from cases.case import Case

CASES = {
    case.name: case
    for group in (
        examples,
        language_models,
        hugging_face,
        vision_and_graphs,
        reinforcement,
        frameworks,
        generative,
        further,
    )
    for case in group.CASES
}

__all__ = ["CASES", "Case"]
