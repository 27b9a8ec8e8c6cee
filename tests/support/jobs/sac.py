"""A small soft actor-critic in plain torch, on random transitions, with everything at the top level of the script.

    python sac.py STEPS [NAN_AT]

One optimizer has both critics, the actor is updated at every second step, the temperature is a tensor with an optimizer
of its own, and the target networks have none. Prints a line of JSON: the losses by step as the script knows them, and a
checksum of all weights. With NAN_AT the actor's loss is NaN from that step on; its update then breaks its weights.
"""

import json
import sys
import zlib

import torch
from torch import nn

EVERY = 2
GAMMA, TAU = 0.99, 0.05


class SoftQNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 16)
        self.fc2 = nn.Linear(16, 1)

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(torch.cat([state, action], 1))))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 16)
        self.fc_mean = nn.Linear(16, 2)
        self.fc_log_std = nn.Linear(16, 2)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.fc1(state))
        return self.fc_mean(hidden), torch.tanh(self.fc_log_std(hidden))

    def get_action(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self(state)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = normal.rsample()
        return torch.tanh(raw), normal.log_prob(raw).sum(1, keepdim=True)


steps, nan_at = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
torch.manual_seed(0)
torch.set_num_threads(1)
actor = Actor()
qf1, qf2, qf1_target, qf2_target = (SoftQNetwork() for _ in range(4))
qf1_target.load_state_dict(qf1.state_dict())
qf2_target.load_state_dict(qf2.state_dict())
q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
actor_optimizer = torch.optim.Adam(list(actor.parameters()), lr=3e-4)
log_alpha = torch.zeros(1, requires_grad=True)
alpha_optimizer = torch.optim.Adam([log_alpha], lr=5e-4)
losses: dict[str, dict[int, float]] = {"soft_q_network": {}, "actor": {}, "log_alpha": {}}
for step in range(1, steps + 1):
    state, action, reward, after = torch.randn(16, 4), torch.rand(16, 2) * 2 - 1, torch.randn(16, 1), torch.randn(16, 4)
    with torch.no_grad():
        next_action, next_log_pi = actor.get_action(after)
        best = torch.min(qf1_target(after, next_action), qf2_target(after, next_action))
        wanted = reward + GAMMA * (best - log_alpha.exp() * next_log_pi)
    qf_loss = nn.functional.mse_loss(qf1(state, action), wanted) + nn.functional.mse_loss(qf2(state, action), wanted)
    q_optimizer.zero_grad()
    qf_loss.backward()
    q_optimizer.step()
    losses["soft_q_network"][step] = qf_loss.item()
    if step % EVERY == 0:
        chosen, log_pi = actor.get_action(state)
        value = torch.min(qf1(state, chosen), qf2(state, chosen))
        actor_loss = (log_alpha.exp().detach() * log_pi - value).mean()
        if 0 < nan_at <= step:
            actor_loss = actor_loss * float("nan")
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        losses["actor"][step] = actor_loss.item()
        alpha_loss = (-log_alpha.exp() * (log_pi.detach() - 2.0)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()
        losses["log_alpha"][step] = alpha_loss.item()
    with torch.no_grad():
        for target, net in ((qf1_target, qf1), (qf2_target, qf2)):
            for old, new in zip(target.parameters(), net.parameters(), strict=True):
                old.mul_(1 - TAU).add_(new, alpha=TAU)
weights = [p.detach().numpy().tobytes() for net in (actor, qf1, qf2, qf1_target) for p in net.parameters()]
print(json.dumps({"losses": losses, "weights": zlib.crc32(b"".join([*weights, log_alpha.detach().numpy().tobytes()]))}))
