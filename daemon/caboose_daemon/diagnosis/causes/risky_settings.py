"""Settings that are known to cause trouble with any data."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, line_to_set, supports
from caboose_daemon.incidents.causal_links import EXTREME
from caboose_daemon.incidents.diagnosis_record import Advice

NAMES = ("fp16_without_scaler", "high_eps", "low_lr", "high_lr", "adam_l2", "no_clipping", "no_warmup")
"""Keys of config_advice, the worst first."""


class RiskySettings(Cause):
    """Settings of the run that config_advice reports."""

    id = "risky_settings"
    title = "risky settings"
    explains = frozenset({"config_advice"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        finding = case.finding("config_advice")
        if finding is None:
            return
        if EXTREME.keys() & finding.values.keys():  # these have causes of their own
            yield supports(SLIGHT, finding.summary)
            return
        rates = {"low_lr", "high_lr"} & set(finding.values)
        yield supports(FAIR if rates and len(finding.values) == len(rates) else STRONG, finding.summary)

    def advise(self, case: Case) -> Advice:
        finding = case.finding("config_advice")
        worst = next((name for name in NAMES if finding is not None and name in finding.values), "")
        lr, optimizer = case.lr, case.optimizer or "the optimizer"
        was = f"was {lr:g}" if lr is not None else ""
        rate, decay = f"{lr:.3g}" if lr else "lr", f"{case.hyper('weight_decay') or 0.01:g}"
        fix, code = {
            "fp16_without_scaler": (
                "keep the parameters in float32 and use autocast with a GradScaler, or bfloat16",
                "scaler = torch.amp.GradScaler(device)  # not model.half(): the forward under torch.autocast(device)",
            ),
            "low_lr": (
                f"raise the learning rate; {optimizer} hardly moves the weights at this one",
                line_to_set(case, "lr", "1e-4", was),
            ),
            "high_lr": (
                f"lower the learning rate to a usual one for {optimizer}",
                line_to_set(case, "lr", "1e-3", was),
            ),
            "high_eps": ("set eps to its default", "for group in optimizer.param_groups: group['eps'] = 1e-8"),
            "adam_l2": (
                "use decoupled weight decay",
                f"optimizer = torch.optim.AdamW(model.parameters(), lr={rate}, weight_decay={decay})",
            ),
            "no_clipping": ("clip gradients", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
            "no_warmup": (
                "warm the learning rate up over the first few hundred steps",
                "scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 500)",
            ),
        }.get(worst, ("follow the finding's summary", ""))
        return Advice(
            first_fix=fix,
            code=code,
            avoid="do not change it in the middle of a healthy run: many runs do well against the advice",
            verify="the next run starts without config_advice",
        )
