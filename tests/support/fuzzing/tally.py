"""The world of the examples, and what became of them: counted, and the ones that failed kept as files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from support.fuzzing import corpus
from support.fuzzing.world import MAX_EXAMPLES, Operation, World


class Tally:
    """Counts examples. `directory`: where failures are kept, each once; without one the first failure is raised."""

    def __init__(self, directory: Path | None = None) -> None:
        self.num_examples = 0
        self.num_past_close = 0
        self.crashers: dict[corpus.Failure, Path] = {}
        self._directory = directory
        self._world: World | None = None

    @contextlib.contextmanager
    def example(self) -> Iterator[World]:
        """The world for one example; the same as before, as long as nothing failed in it."""
        world = self.begin()
        try:
            yield world
            self.end(world)
        except Exception as error:
            if not self.is_kept(world, error):
                raise

    def begin(self) -> World:
        if self._world is not None and self._world.num_examples >= MAX_EXAMPLES:
            self.discard()
        self._world = self._world or World()
        self._world.begin()
        return self._world

    def end(self, world: World) -> None:
        num_steps = world.end()
        self.num_examples += 1
        self.num_past_close += num_steps > 0

    def is_kept(self, world: World, error: Exception) -> bool:
        """Whether a failure is on record, so that fuzzing may go on; the world is made anew."""
        operations = list(world.operations)
        self.discard()
        if self._directory is None:
            return False
        self.num_examples += 1
        seen = corpus.failure_of(error)
        if seen not in self.crashers:
            self.crashers[seen] = self._keep(self._directory, seen, operations)
        return True

    def _keep(self, directory: Path, seen: corpus.Failure, operations: list[Operation]) -> Path:
        alone = corpus.failure(operations)
        if alone is None:
            return corpus.keep(directory, operations, f"{seen}, not when it is played alone")
        smallest = corpus.minimised(operations, lambda candidate: corpus.failure(candidate) == alone)
        return corpus.keep(directory, smallest, f"{alone[0]} in {alone[1]}")

    def discard(self) -> None:
        if self._world is not None:
            world, self._world = self._world, None
            with contextlib.suppress(Exception):  # it failed before, and that is what counts
                world.close()

    def write(self, path: Path) -> None:
        """For the program that started this one."""
        counts = {"examples": self.num_examples, "past_close": self.num_past_close}
        crashers = [str(kept) for kept in self.crashers.values()]
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps({**counts, "crashers": crashers}))
        aside.replace(path)
