"""Formatting of error messages."""


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, or the name of its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
