"""`caboose.huggingface.CabooseCallback`, for the Hugging Face Trainer."""

from caboose.integrations.huggingface import CabooseCallback

__all__ = ["CabooseCallback"]
