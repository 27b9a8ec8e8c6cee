"""Lines to change that several causes write: a setting of the optimizer, with the user's own name and number for it.

Where the optimizer is not known, as in a log, or there are several, the line changes the groups of the one there is: a
name that was guessed would be the advice to change it.
"""

from caboose_daemon.diagnosis.case import Case


def setting(case: Case, name: str, value: str, was: str, *, is_change: bool = False) -> str:
    """Sets a hyper-parameter; `is_change` for a value that is an operation on the present one, such as `/= 10`."""
    comment = f"  # {was}" if was else ""
    if case.optimizer.isidentifier() and not is_change:
        return f"optimizer = {case.optimizer}(model.parameters(), {name}={value}){comment}"
    return f'for group in optimizer.param_groups: group["{name}"] {value if is_change else f"= {value}"}{comment}'


def rate(case: Case, lr: float | None, factor: float) -> str:
    """Changes the learning rate by a factor, from `lr`, where that is known."""
    if lr:
        return setting(case, "lr", f"{lr * factor:.2g}", f"was {lr:.2g}")
    return setting(case, "lr", f"*= {factor:g}", "", is_change=True)
