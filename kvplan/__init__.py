"""Plan an LLM engine's KV-cache pool without a GPU."""

__version__ = "0.1.0"
