"""Errors that a user of the example can do something about."""


class UserError(Exception):
    """Shown as one line, without a traceback; the process ends with ``code``."""

    code = 2


class Missing(UserError):
    """Something is not installed or not there; the message names the command that brings it."""


class LateJoin(UserError):
    """The run has begun; a newcomer cannot get the parameters of the others yet."""

    def __init__(self, rounds: int) -> None:
        super().__init__(
            f"this run has begun ({rounds} rounds are done) and a newcomer cannot get its parameters from the others; "
            f"start the run with --founders N to make its first round wait for N peers, then join"
        )
