"""What a reader says when a trace is wrong."""


class TraceError(ValueError):
    """One sentence: what was given, where (file:line, field), what would be right."""


def shown(value: object, width: int = 40) -> str:
    """Return `value` as it reads in a message: its repr, cut to `width` characters."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def counted(number: int, noun: str) -> str:
    """Return "1 hash", "2 hashes", "0 tokens"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('h') else 's'}"
