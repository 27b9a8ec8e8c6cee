"""What a job's metrics remember from step to step: counts that only grow, and the latest sample of its layers."""

from collections import Counter

from caboose_daemon.rules.parts.scaling import SkippedSteps
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.noise import NoiseScale
from caboose_daemon.steps.samples.latest import LatestNorms, LatestSample, update_latest, update_norms
from caboose_daemon.steps.samples.sample import Sample, Sampler


class Meters:
    """Of one job; `restart` begins a new attempt and keeps only the counts."""

    def __init__(self) -> None:
        self.num_clipped = 0
        self.num_skipped = 0
        self.restart()

    def restart(self) -> None:
        """Begins a new attempt: nothing is known of its layers and replicas yet."""
        self.latest: LatestSample | None = None
        self.norms: LatestNorms | None = None
        self.sample: Sample | None = None
        """What the last step showed of the layers; None where it was not sampled."""
        self._sampler = Sampler()
        self.noise = NoiseScale()
        self.replicas: tuple[int, int] | None = None
        """How many replicas were compared in the last sampled step, and how many of them differ from the majority."""
        self._skipped = SkippedSteps()

    def observe(self, step: AlignedStep) -> None:
        if not step.reports:
            return  # a row of a log: it has only what the step itself holds
        ratio = step.clip_ratio
        self.num_clipped += ratio is not None and ratio < 1.0
        self.num_skipped += step.scaler is not None and self._skipped.observe(step)
        self.norms = update_norms(step, self.norms)
        if step.is_sampled:
            self.latest = update_latest(step, self.latest)
        self.sample = self._sampler.observe(step, self.latest)
        if not step.is_sampled:
            return
        self.noise.observe(step)
        prints = [report.fingerprint for report in step.reports.values() if report.fingerprint is not None]
        if len(prints) >= 2:
            votes = Counter(prints).most_common(1)[0][1]
            self.replicas = (len(prints), len(prints) - votes)
