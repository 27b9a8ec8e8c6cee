"""DeepSpeed ZeRO: attach the engine and its optimizer.

    pip install deepspeed
    caboose daemon &
    torchrun --nproc-per-node 2 examples/deepspeed_zero.py --stage 2

Without the two lines: `deepspeed --no_local_rank --module caboose` and your script, or torchrun's `-m caboose`.
"""

import argparse

import deepspeed
import torch
from torch import nn

import caboose


def main() -> None:
    """Trains a small network, two micro-batches a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=2)
    options = parser.parse_args()

    deepspeed.ops.__compatible_ops__.clear()  # this line and the next are for CPUs: no C++ is compiled
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    monitor = caboose.attach(engine, optimizer)  # 1: the engine
    torch.manual_seed(1 + engine.global_rank)
    losses = []
    while engine.global_steps < options.steps:
        batch = torch.randn(16, 16)
        loss = nn.functional.mse_loss(engine(batch), batch.sin().sum(dim=1, keepdim=True))
        losses.append(loss.detach())
        engine.backward(loss)
        is_boundary = engine.is_gradient_accumulation_boundary()
        engine.step()
        if is_boundary:
            monitor.step(torch.stack(losses).mean())  # 2: after each step of the engine
            losses.clear()
    if engine.global_rank == 0:
        print(f"step {engine.global_steps}  loss {loss.item():.4f}")
    monitor.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
