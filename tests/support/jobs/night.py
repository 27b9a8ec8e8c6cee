"""Small regressions that learn, each with one fault of the night before a review; run as a script."""

import argparse

import torch

import caboose

FAULTS = ("none", "cached", "decayed", "overfits", "old_checkpoint")
STEPS = 600


def main() -> None:
    """Trains one job for each fault, and validates every twentieth step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="+", choices=FAULTS)
    for fault in parser.parse_args().faults:
        train(fault)


def train(fault: str) -> None:
    """One job, named after its fault."""
    torch.manual_seed(0)
    truth = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    num = 48 if fault == "overfits" else 4096
    noise = 0.3 if fault == "overfits" else 0.05
    inputs, checks = torch.randn(num, 32), torch.randn(1024, 32)
    with torch.no_grad():
        targets, wanted = truth(inputs) + noise * torch.randn(num, 1), truth(checks)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 150 else 1e-5)
    monitor = caboose.attach(model, optimizer, job=fault, sampling=10)
    kept: dict[str, torch.Tensor] = {}
    evaluated_step, cached = 0, None
    for step in range(1, STEPS + 1):
        rows = torch.randint(0, num, (32,))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        if fault == "decayed":
            decay.step()
        monitor.step(loss)
        if step % 20:
            continue
        if fault != "old_checkpoint" or step <= 100:
            evaluated_step = step
            kept = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            some = torch.randint(0, 1024, (256,))
            outputs = torch.func.functional_call(model, kept, (checks[some],))
            result = torch.nn.functional.mse_loss(outputs, wanted[some]).item()
        cached = result if cached is None else cached
        monitor.validation(cached if fault == "cached" else result, checkpoint_step=float(evaluated_step))
    monitor.close()


if __name__ == "__main__":
    main()
