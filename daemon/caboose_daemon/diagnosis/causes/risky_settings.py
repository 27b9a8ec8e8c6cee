"""Settings that are known to cause trouble with any data."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, supports
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
        fix, code = {
            "fp16_without_scaler": (
                "keep the parameters in float32 and use autocast with a GradScaler, or bfloat16",
                "with torch.autocast(device, torch.float16): ...; scaler = torch.amp.GradScaler()  # not model.half()",
            ),
            "low_lr": (f"raise the learning rate; {optimizer} hardly moves the weights at this one", "lr=1e-4"),
            "high_lr": (f"lower the learning rate to a usual one for {optimizer}", "lr=1e-3"),
            "high_eps": ("set eps to its default", "optimizer = torch.optim.AdamW(model.parameters(), eps=1e-8)"),
            "adam_l2": ("use decoupled weight decay", "optimizer = torch.optim.AdamW(...)"),
            "no_clipping": ("clip gradients", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
            "no_warmup": (
                "warm the learning rate up over the first few hundred steps",
                "LinearLR(optimizer, 0.01, 1.0, 500)",
            ),
        }.get(worst, ("follow the finding's summary", ""))
        was = f"  # was {lr:g}" if worst in ("low_lr", "high_lr") and lr is not None else ""
        return Advice(
            first_fix=fix,
            code=f"{code}{was}" if code else "",
            avoid="do not change it in the middle of a healthy run: many runs do well against the advice",
            verify="the next run starts without config_advice",
        )
