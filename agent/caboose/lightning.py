"""`caboose.lightning.CabooseCallback`, for Lightning's Trainer."""

from caboose.integrations.lightning import CabooseCallback

__all__ = ["CabooseCallback"]
