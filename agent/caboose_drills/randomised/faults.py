"""What each disease changes in a plan: settings, numbers, the loop. The rest is in `data_faults` and `model_faults`."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from caboose_drills.randomised import data_faults, model_faults
from caboose_drills.randomised.losses import cross_entropy
from caboose_drills.randomised.plan import Loss, Plan, Tensors


def between(plan: Plan, weak: float, strong: float) -> float:
    """A value of the draw's strength, on a logarithmic scale."""
    return float(weak * (strong / weak) ** plan.draw.strength)


def apply(plan: Plan) -> None:
    """Makes the plan ill; leaves that of a healthy draw as it is."""
    if plan.draw.disease:
        _FAULTS[plan.draw.disease](plan)


def lr_high(plan: Plan) -> None:
    plan.lr *= between(plan, 30, 300)


def lr_jump(plan: Plan) -> None:
    factor, onset = between(plan, 30, 200), plan.draw.onset
    plan.lr_at = lambda step: factor if step + 1 >= onset else 1.0


def lr_low(plan: Plan) -> None:
    plan.lr /= between(plan, 1e3, 1e5)


def lr_decayed(plan: Plan) -> None:
    ends = between(plan, 0.15, 0.05) * plan.steps
    plan.lr_at = lambda step: max(1e-6, math.exp(-5.0 * step / ends))


def batch_changed(plan: Plan) -> None:
    """The batch shrinks, as after a resume on fewer machines, and the learning rate stays."""
    plan.lr *= 3.0
    plan.batch = max(64, plan.batch)
    plan.batch_from = (plan.draw.onset, 4 if plan.draw.strength < 0.5 else 2)


def attention_fast(plan: Plan) -> None:
    """The group of queries and keys kept a learning rate of another model."""
    plan.fast_part = ("in_proj", between(plan, 20, 100))


def head_fast(plan: Plan) -> None:
    """Likewise that of the output layer."""
    plan.fast_part = ("head", between(plan, 50, 200))


def warm_up_missing(plan: Plan) -> None:
    plan.warm_up = 0
    plan.lr *= between(plan, 5, 20)


def nan_log_zero(plan: Plan) -> None:
    """A hand-written logarithm of a probability, or of a value that becomes zero."""
    if plan.draw.family == "vae":
        plan.edit_loss.append(lambda loss: lambda model, batch: loss(model, batch) + 0.01 * _log_of_relu(model, batch))
        return
    sharpness = between(plan, 12, 40)

    def broken(model: nn.Module, batch: Tensors) -> Tensor:
        chances = F.softmax(sharpness * model(batch[0]).flatten(0, -2), dim=-1)
        return -torch.log(chances.gather(1, batch[1].flatten()[:, None])).mean() / sharpness

    plan.edit_loss.append(lambda _: broken)


def _log_of_relu(model: nn.Module, batch: Tensors) -> Tensor:
    spread = model(batch[0])[2]
    return -torch.log(F.relu(spread + 2.0)).mean()


def nan_overflow(plan: Plan) -> None:
    """A hand-written softmax without its maximum subtracted, over logits on a larger scale from the onset on."""
    plan_step = _counted(plan)

    def broken(model: nn.Module, batch: Tensors) -> Tensor:
        outputs = model(batch[0]).flatten(0, -2)
        if plan_step() < plan.draw.onset:
            return cross_entropy(outputs, batch[1])
        powers = torch.exp(60.0 * outputs)
        return -torch.log(powers.gather(1, batch[1].flatten()[:, None]).squeeze(1) / powers.sum(dim=1)).mean() / 60.0

    plan.edit_loss.append(lambda _: broken)


def _counted(plan: Plan) -> Callable[[], int]:
    """The step that is trained, as the batches count it."""
    seen = {"step": 0}
    earlier = plan.spoil

    def spoil(step: int, batch: Tensors) -> Tensors:
        seen["step"] = step
        return batch if earlier is None else earlier(step, batch)

    plan.spoil = spoil
    return lambda: seen["step"]


def nan_half(plan: Plan) -> None:
    """Float16 with a scaler, and a sum of squares that it cannot hold."""
    plan.precision = "float16"
    size = between(plan, 300, 1000)

    def broken(loss: Loss) -> Loss:
        def with_penalty(model: nn.Module, batch: Tensors) -> Tensor:
            outputs = model(batch[0])
            outputs = outputs[0] if isinstance(outputs, tuple) else outputs
            squares = (outputs.half() * size).square().sum(dim=-1)
            value: Tensor = loss(model, batch) + 1e-8 * squares.float().mean()
            return value

        return with_penalty

    plan.edit_loss.append(broken)


def no_zero_grad(plan: Plan) -> None:
    plan.zeroes_gradients = False


def eval_mode(plan: Plan) -> None:
    plan.eval_from = plan.draw.onset
    plan.dropout = max(plan.dropout, 0.1)


def norm_of_two(plan: Plan) -> None:
    plan.batch = 2 * plan.micro_batches


def dropout_high(plan: Plan) -> None:
    plan.dropout = 0.85 + 0.12 * plan.draw.strength


def oscillation(plan: Plan) -> None:
    """A learning rate at the edge of stability."""
    plan.lr *= between(plan, 8, 20)
    plan.momentum = 0.95


def clip_tight(plan: Plan) -> None:
    plan.clip = 1.0 / between(plan, 300, 10_000)


def decay_high(plan: Plan) -> None:
    """Decay that takes a share of the weights at each step; for Adam's coupled kind, a gradient of its own."""
    share = between(plan, 0.03, 0.2)
    plan.weight_decay = between(plan, 0.3, 3.0) if plan.draw.optimizer == "adam" else share / plan.lr


def bf16_updates(plan: Plan) -> None:
    """Weights in bfloat16, and updates far below half of their last digit."""
    plan.precision = "bfloat16 weights"
    plan.lr /= between(plan, 10, 100)


def no_target_net(plan: Plan) -> None:
    plan.has_target_net = False
    plan.discount = 0.97 + 0.029 * plan.draw.strength
    plan.lr *= 5.0


def gan_collapse(plan: Plan) -> None:
    plan.adversary_lr = between(plan, 10, 60)


def memory_growth(plan: Plan) -> None:
    plan.keeps_graphs = True


def slow_loader(plan: Plan) -> None:
    seconds, onset = between(plan, 0.02, 0.05), plan.draw.onset if plan.draw.strength < 0.5 else 0
    plan.steps = min(plan.steps, 240)
    plan.wasted = seconds * plan.micro_batches
    plan.batch_delay = lambda step: seconds if step >= onset else 0.0


def slow_rank(plan: Plan) -> None:
    bad, seconds = plan.draw.seed % plan.draw.world, between(plan, 0.03, 0.08)
    plan.steps, plan.origin_ranks, plan.wasted = 200, (bad,), seconds
    if plan.rank == bad:
        plan.step_delay = lambda _: seconds * (0.8 + 0.4 * plan.rng.random())


def schedule_restarted(plan: Plan) -> None:
    """The run is resumed, and its scheduler starts from nothing."""
    plan.restarts_at = plan.draw.onset


def momentum_high(plan: Plan) -> None:
    plan.momentum = 1.0 - between(plan, 0.01, 0.0005)


def waste(seconds: float) -> None:
    """Time that passes."""
    time.sleep(seconds)


_FAULTS: dict[str, Callable[[Plan], None]] = {
    "lr_high": lr_high,
    "lr_jump": lr_jump,
    "lr_low": lr_low,
    "lr_decayed": lr_decayed,
    "batch_changed": batch_changed,
    "warm_up_missing": warm_up_missing,
    "attention_fast": attention_fast,
    "head_fast": head_fast,
    "nan_log_zero": nan_log_zero,
    "nan_overflow": nan_overflow,
    "nan_half": nan_half,
    "no_zero_grad": no_zero_grad,
    "eval_mode": eval_mode,
    "norm_of_two": norm_of_two,
    "dropout_high": dropout_high,
    "oscillation": oscillation,
    "clip_tight": clip_tight,
    "decay_high": decay_high,
    "bf16_updates": bf16_updates,
    "no_target_net": no_target_net,
    "gan_collapse": gan_collapse,
    "memory_growth": memory_growth,
    "slow_loader": slow_loader,
    "slow_rank": slow_rank,
    "schedule_restarted": schedule_restarted,
    "momentum_high": momentum_high,
    **data_faults.FAULTS,
    **model_faults.FAULTS,
}
