"""Messages of errors."""


def reason(error: BaseException) -> str:
    """Give what an error says on one line.

    Parameters
    ----------
    error : BaseException
        The error.

    Returns
    -------
    str
        Its message, or the name of its class where there is none.
    """
    return " ".join(str(error).split()) or type(error).__name__
