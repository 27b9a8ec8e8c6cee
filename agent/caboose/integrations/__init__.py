"""Callbacks for training frameworks; users import them as `caboose.huggingface` and `caboose.lightning`."""
