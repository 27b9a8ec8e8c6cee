"""Whether evaluations run in train mode: without gradients, and with batch norms or dropouts that act.

Design
------
A forward without gradients in train mode is an evaluation's only where a validation is reported. A program that has
such forwards in other steps too has a use for them (a teacher, a rollout), and is not judged.
"""


class TrainEvaluations:
    """Follows the evaluations of one run."""

    def __init__(self) -> None:
        self.num = 0
        """The last evaluations in a row that ran in train mode."""
        self._is_usual = False

    def observe(self, *, num_forwards: int, is_evaluation: bool) -> None:
        """One step whose modes were seen."""
        if not is_evaluation:
            self._is_usual = self._is_usual or num_forwards > 0
        elif num_forwards:
            self.num += 1
        else:
            self.num = 0
        if self._is_usual:
            self.num = 0
