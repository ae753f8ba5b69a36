"""What of a backend's outputs can be sent to a caller: Python's strings hold more than UTF-8 does."""


def is_text(output: str) -> bool:
    """Whether it can be sent: a lone surrogate has no UTF-8 form."""
    if output.isascii():
        return True
    try:
        output.encode()
    except UnicodeEncodeError:
        return False
    return True
