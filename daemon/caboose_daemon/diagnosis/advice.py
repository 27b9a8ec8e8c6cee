"""Further remedies by cause: what else to try after the first fix, each with a line of code that runs.

Design
------
A cause's own advice is one fix, with the numbers of the run. The remedies here are the usual others for the same cause,
in the order in which to try them. They are data, so that one test can run every line: with `model`, `optimizer`,
`loader`, `dataset`, `inputs`, `targets`, `logits`, `loss`, `val_loss`, `lr`, `step` and `steps` defined, as a training
script has them (`outputs` and `values` in a regression), and torch, `nn` and `F` imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Remedy:
    """One more thing to try."""

    what: str
    line: str


def _on_plateau() -> Remedy:
    return Remedy(
        "lower the rate when validation stops falling (step it with the validation loss, once per evaluation)",
        "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=5); "
        "scheduler.step(val_loss)",
    )


CYCLIC = Remedy(
    "let the rate go up and down, to leave a flat region",
    "scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=lr / 3, max_lr=3 * lr, step_size_up=500, "
    "cycle_momentum=False)",
)
MOMENTUM = Remedy(
    "give SGD momentum, which carries it over a saddle",
    "optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)",
)
ONE_CYCLE = Remedy(
    "one cycle: up to the peak rate and down to nearly zero, over the whole run",
    "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=10 * lr, total_steps=steps)",
)
WARMUP_COSINE = Remedy(
    "a linear warm-up, then a cosine to the end of the run",
    "scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, "
    "[torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=steps // 20), "
    "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - steps // 20)], milestones=[steps // 20])",
)
LINEAR_SCALING = Remedy(
    "after a larger batch: the rate times the same factor (here 4), with a warm-up, as it is the largest stable change",
    "for group in optimizer.param_groups: group['lr'] *= 4  # batch 256 instead of 64, and a warm-up of 5 % of the run",
)
SQUARE_ROOT_SCALING = Remedy(
    "with Adam, the rate times the square root of the batch's factor (here 4)",
    "for group in optimizer.param_groups: group['lr'] *= 4 ** 0.5",
)
SPECTRAL_NORM = Remedy(
    "limit the gain of each layer to 1, where the gradient grows layer by layer",
    "model[0] = nn.utils.parametrizations.spectral_norm(model[0])",
)
ORTHOGONAL = Remedy(
    "orthogonal initial weights, which keep the length of the signal at any depth",
    "for layer in model.modules(): isinstance(layer, nn.Linear) and nn.init.orthogonal_(layer.weight, gain=1.0)",
)
KAIMING = Remedy(
    "He initialisation for ReLU",
    "for layer in model.modules(): isinstance(layer, nn.Linear) and "
    "nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')",
)
XAVIER = Remedy(
    "Xavier initialisation for tanh and sigmoid",
    "for layer in model.modules(): isinstance(layer, nn.Linear) and nn.init.xavier_uniform_(layer.weight)",
)
GRU = Remedy(
    "a gated unit instead of a plain RNN: its gates pass the gradient on",
    "rnn = nn.GRU(input_size=16, hidden_size=32, num_layers=1, batch_first=True)",
)
RECURRENT_ORTHOGONAL = Remedy(
    "in an RNN, orthogonal recurrent weights: their eigenvalues have length 1",
    "rnn = nn.GRU(16, 32); nn.init.orthogonal_(rnn.weight_hh_l0)",
)
HUBER = Remedy(
    "a loss that grows linearly for outliers, in a regression",
    "loss = F.huber_loss(outputs, values, delta=1.0)",
)
CLIP_VALUE = Remedy(
    "clip each value, where single elements explode and the norm is fine",
    "torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)",
)
CLIP_BY_ARCHITECTURE = Remedy(
    "usual limits: transformers 1.0, RNN and LSTM 0.25 to 5, convolutions 1 to 10; start at 1.0 and look at the norm",
    "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), "
    "{'transformer': 1.0, 'rnn': 0.25, 'convolution': 5.0}['transformer'])",
)
EARLY_STOPPING = Remedy(
    "stop when validation has not improved for some evaluations, and keep the best weights (not where double descent "
    "is under way: validation rises there, and falls again)",
    "best, waited = (val_loss, 0) if val_loss < best else (best, waited + 1); should_stop = waited >= patience",
)
ENSEMBLE = Remedy(
    "the mean prediction of several runs that differ only in their seed",
    "outputs = torch.stack([one(inputs).softmax(dim=-1) for one in models]).mean(dim=0)",
)
K_FOLD = Remedy(
    "k-fold cross-validation, where data is too small for one split",
    "folds = [(torch.cat([*parts[:k], *parts[k + 1:]]), parts[k]) "
    "for parts in [torch.randperm(len(dataset)).chunk(5)] for k in range(5)]",
)
TRANSFER = Remedy(
    "start from pretrained weights: freeze them, and train the last layer first",
    "for parameter in model[:-1].parameters(): parameter.requires_grad_(False)",
)
ADAMW = Remedy(
    "AdamW instead of Adam with weight_decay: Adam divides the decay by the gradient's size",
    "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)",
)
DROPOUT = Remedy("dropout before the last layer", "model = nn.Sequential(*model[:-1], nn.Dropout(0.2), model[-1])")
AUGMENTATION = Remedy(
    "augmentation: other versions of the same samples, such as noise and flips",
    "inputs = inputs + 0.05 * torch.randn_like(inputs)",
)
MIXUP = Remedy(
    "mixtures of two samples, for labels that are wrong or too sure",
    "order = torch.randperm(len(inputs)); inputs = 0.8 * inputs + 0.2 * inputs[order]",
)
LABEL_SMOOTHING = Remedy("targets that are less sure", "loss = F.cross_entropy(logits, targets, label_smoothing=0.1)")
SGD_FINE = Remedy(
    "finish with SGD, whose minima are often flatter than Adam's: a tenth of the run at a small rate, by validation",
    "optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)",
)
WEIGHT_AVERAGE = Remedy(
    "an average of the weights over the last part of the run, which lies in a flatter place",
    "average = torch.optim.swa_utils.AveragedModel(model); average.update_parameters(model)",
)
RESIDUAL = Remedy(
    "a residual connection and a norm: the gradient passes by each block",
    "inputs = inputs + nn.Linear(inputs.shape[-1], inputs.shape[-1])(F.layer_norm(inputs, inputs.shape[-1:]))",
)
GROUP_NORM = Remedy(
    "a norm that does not depend on the batch, where batches are small",
    "norm = nn.GroupNorm(num_groups=8, num_channels=64)",
)
BATCH_NORM = Remedy(
    "batch norm after each convolution, with batches of 16 samples or more",
    "block = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())",
)
LAYER_NORM = Remedy(
    "layer norm before each block of a transformer or RNN: it needs no batch",
    "block = nn.Sequential(nn.LayerNorm(inputs.shape[-1]), nn.Linear(inputs.shape[-1], 64), nn.GELU())",
)
SHARPNESS_AWARE = Remedy(
    "a step of SAM: the gradient where the loss is highest nearby, which leads to flatter minima",
    "grads = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters())); "
    "radius = 0.05 / torch.nn.utils.get_total_norm(grads); "
    "moves = [(p, radius * g) for p, g in zip(model.parameters(), grads)]; "
    "[p.data.add_(e) for p, e in moves]; optimizer.zero_grad(); "
    "F.cross_entropy(model(inputs), targets).backward(); [p.data.sub_(e) for p, e in moves]; optimizer.step()",
)
ADAPTIVE = Remedy(
    "an optimizer that scales each parameter's step, where SGD zigzags between steep and flat directions",
    "optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)",
)
ACCUMULATE = Remedy(
    "a larger batch by accumulation, at the same memory",
    "(loss / 4).backward(); step % 4 == 0 and (optimizer.step(), optimizer.zero_grad())",
)
CLASS_WEIGHTS = Remedy(
    "weights for rare classes, from the counts in the training data",
    "counts = torch.bincount(targets, minlength=logits.shape[-1]).clamp_min(1); "
    "loss = F.cross_entropy(logits, targets, weight=counts.sum() / (len(counts) * counts))",
)
LEAKY = Remedy("an activation that never blocks the gradient", "activation = nn.LeakyReLU(0.01)")
RAISE_LR = Remedy(
    "twice to ten times the rate for a few hundred steps, where the gradient norm is healthy and the loss stands",
    "for group in optimizer.param_groups: group['lr'] *= 3",
)
LOWER_LR = Remedy("half of the rate", "for group in optimizer.param_groups: group['lr'] *= 0.5")
SEED = Remedy("the same run with another seed: is the difference more than luck", "torch.manual_seed(1)")

REMEDIES: Mapping[str, tuple[Remedy, ...]] = {
    "bad_init": (KAIMING, XAVIER, ORTHOGONAL),
    "batch_too_large": (LINEAR_SCALING, SQUARE_ROOT_SCALING, WARMUP_COSINE),
    "batch_too_small": (ACCUMULATE, GROUP_NORM),
    "budget_too_short": (ONE_CYCLE, WARMUP_COSINE),
    "clip_too_tight": (CLIP_BY_ARCHITECTURE, CLIP_VALUE),
    "converged": (EARLY_STOPPING, _on_plateau(), ENSEMBLE, SEED),
    "dying_relu": (LEAKY, KAIMING, LOWER_LR),
    "exploding_gradients": (
        *(CLIP_BY_ARCHITECTURE, CLIP_VALUE, WARMUP_COSINE, SPECTRAL_NORM),
        *(ORTHOGONAL, RECURRENT_ORTHOGONAL, GRU, LAYER_NORM, BATCH_NORM),
    ),
    "labels_shuffled": (MIXUP,),
    "lr_decayed": (WARMUP_COSINE, ONE_CYCLE, _on_plateau(), CYCLIC),
    "lr_too_high": (WARMUP_COSINE, _on_plateau(), CLIP_BY_ARCHITECTURE),
    "lr_too_low": (ONE_CYCLE, CYCLIC, LINEAR_SCALING),
    "memorising": (
        *(EARLY_STOPPING, ADAMW, DROPOUT, AUGMENTATION, TRANSFER, LABEL_SMOOTHING, K_FOLD, ENSEMBLE),
        *(SGD_FINE, WEIGHT_AVERAGE, SHARPNESS_AWARE),
    ),
    "momentum_too_high": (WARMUP_COSINE, LOWER_LR),
    "optimizer_unsuited": (ADAPTIVE, MOMENTUM, WARMUP_COSINE),
    "outlier_batch": (HUBER, CLIP_VALUE),
    "overconfident": (LABEL_SMOOTHING, EARLY_STOPPING, MIXUP, ENSEMBLE),
    "over_regularised": (ADAMW,),
    "rate_not_scaled": (LINEAR_SCALING, SQUARE_ROOT_SCALING, WARMUP_COSINE),
    "risky_settings": (ADAMW, WARMUP_COSINE),
    "saddle": (RAISE_LR, CYCLIC, MOMENTUM, ORTHOGONAL, ONE_CYCLE),
    "schedule_jump": (WARMUP_COSINE, ONE_CYCLE),
    "too_little_capacity": (TRANSFER, RESIDUAL, GRU),
    "validation_shift": (K_FOLD, AUGMENTATION),
    "vanishing_depth": (RESIDUAL, KAIMING, ORTHOGONAL, GRU, RECURRENT_ORTHOGONAL, LEAKY, BATCH_NORM, LAYER_NORM),
    "weights_decay_away": (ADAMW,),
    "class_imbalance": (CLASS_WEIGHTS,),
}
"""By cause; in the order in which to try them."""


def remedies(cause: str) -> tuple[Remedy, ...]:
    """The further remedies for a cause; empty where there are none beside its first fix."""
    return REMEDIES.get(cause, ())
