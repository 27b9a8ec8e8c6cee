"""A run of one rank with its brake on, in this process, and the daemon's end of it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import caboose
from caboose_wire import Ack, Command, Holdings
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]


class Braked:
    """A small training run, and the daemon's end of it."""

    def __init__(
        self,
        attach: Attach,
        listening: Collector,
        *,
        gives_scheduler: bool = True,
        limits: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`limits` are fields of `caboose.Rollback`."""
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0 / (1 + step / 100))
        self.daemon = listening
        self.num_commands = 0
        self.states: dict[int, list[torch.Tensor]] = {}
        rollback = caboose.Rollback("auto", snapshots=caboose.Snapshots(every=5), **(limits or {}))
        options = {"rollback": rollback, "sampling": caboose.Sampling(overhead_budget=1.0), **options}
        options |= {"endpoint": listening.endpoint} | ({"scheduler": self.scheduler} if gives_scheduler else {})
        self.monitor = attach(self.model, self.optimizer, **options)
        self.loader: Iterator[torch.Tensor] = iter(self.monitor.watch(torch.randn(2000, 16, 4)))

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            inputs = next(self.loader)
            loss = (self.model(inputs).squeeze(-1) - inputs.sum(dim=1)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
            self.optimizer.step()
            self.monitor.step(loss)
            self.scheduler.step()
            self.states[self.monitor.current_step] = [p.detach().clone() for p in self.model.parameters()]

    def holdings(self, is_wanted: Callable[[Holdings], bool] = lambda held: True) -> Holdings:
        """What the rank last said it holds, once that is as wanted; training goes on meanwhile."""
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            found = [m for m in self.daemon.messages if isinstance(m, Holdings)]
            if found and is_wanted(found[-1]):
                return found[-1]
            time.sleep(0.05)
        raise AssertionError(f"holdings: {found[-1:]}")

    def command(self, **fields: Any) -> Command:
        self.num_commands += 1
        values: dict[str, Any] = {
            "number": self.num_commands,
            "kind": "rollback",
            "world": 1,
            "group": self.holdings().group,
            "boundary": self.monitor.current_step + 5,
            "expires": time.time() + 60,
        }
        return Command(**values | fields)

    def tell(self, command: Command) -> str:
        """Says it, trains past its boundary, and returns what became of it."""
        before = self.num_answers("done", "refused", "aborted", "failed")
        self.daemon.say(command)
        wait_until(lambda: self.answers(command.number), 10)
        self.train(max(0, command.boundary - self.monitor.current_step) + 1)
        wait_until(lambda: self.num_answers("done", "refused", "aborted", "failed") > before, 10)
        return self.answers(command.number)[-1].outcome

    def answers(self, number: int) -> list[Ack]:
        return [m for m in self.daemon.messages if isinstance(m, Ack) and m.command == number]

    def num_answers(self, *outcomes: str) -> int:
        return len([m for m in self.daemon.messages if isinstance(m, Ack) and m.outcome in outcomes])

    def assert_state_of(self, step: int) -> None:
        for now, then in zip(self.model.parameters(), self.states[step], strict=True):
            assert torch.equal(now, then)
