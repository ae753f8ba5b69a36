"""Every error that batcher reports, as one tree.

    BatcherError
    ├── ConfigError                a setting that cannot work; raised at start, never later
    ├── Unprinted                  a command's output that nothing takes
    │   └── Unread                 likewise, since its reader has gone
    └── ServiceError               what a caller of the API is told            status  wire type
        ├── InvalidRequest                                                      400    invalid_request_error
        │   └── SafetyRefused      a safety check says no                       400    invalid_request_error
        ├── NotAuthenticated                                                    401    authentication_error
        ├── PermissionDenied       a key that may not do this                   403    permission_error
        ├── NotFound                                                            404    not_found_error
        ├── MethodNotAllowed                                                    405    invalid_request_error
        ├── RequestTimeout         the body did not arrive in time              408    timeout_error
        ├── IdempotencyConflict    the same request is still being answered     409    idempotency_error
        ├── RequestTooLarge                                                     413    request_too_large
        ├── IdempotencyMismatch    an Idempotency-Key with another body         422    idempotency_error
        ├── RateLimited            the key's or the tier's limit                429    rate_limit_error
        ├── Overloaded             no room within the wait budget               529    overloaded_error
        │   └── ShuttingDown       this process is draining                     529    overloaded_error
        ├── Expired                the deadline passed before an answer         504    timeout_error
        └── ServerFault            our side broke                               500    api_error
            ├── InputFailed        run_batch raised on this very input
            ├── BatchFailed        run_batch raised on its batch, and nobody could look for the input that is to blame
            ├── WorkerFailed       the batch lost its worker, and no attempt or retry budget is left
            └── BadOutput          run_batch broke its contract, likewise

Service errors are values in the core (an effect carries one) and exceptions in the shell; but for their tracebacks they are
never mutated, so both uses may share an instance. Whether a caller should retry is a property of the class, not of the
handler that sends it.
"""

from typing import ClassVar

MAX_RETRY_AFTER_S = 60
"""Official clients obey Retry-After only up to a minute."""

NO_WORKER_RETRY_AFTER_S = 2
"""A worker's restart takes a second or so; a fleet without any is tried again soon."""

SHED = "shed"
"""What stood in the way of a request whose key is shed while an overload lasts; see `ServiceError.refused`."""


class BatcherError(Exception):
    """The root: `except BatcherError` catches whatever batcher raises on purpose."""


class ConfigError(BatcherError):
    """A setting that cannot work. The message names the setting, its value and what would be accepted."""


class Unprinted(BatcherError):
    """What a command has to say cannot be printed. The message says why, and what became of what was done."""


class Unread(Unprinted):
    """Whoever read it has gone, as `head` does: not worth a word, unless something was done."""


class ServiceError(BatcherError):
    """An error that a caller of the API is told about.

    `retry_after_s` is a whole number of seconds from 1 to 60, or None where waiting would not help. `refused` is what stood in
    the way, one word of a closed set for metrics, where the class does not say it. `param` is the field of the request that is
    wrong, as `messages[0].role`, for the grammar that tells it apart.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retry_after_s: int | None = None, refused: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.refused = refused
        self.param = param


class InvalidRequest(ServiceError):
    status = 400
    type = "invalid_request_error"


class SafetyRefused(InvalidRequest):
    """A safety check does not let this text pass; the same text would not pass again."""


class PromptTooLong(InvalidRequest):
    """With the answer that is asked for it does not fit the model's context."""


class NotAuthenticated(ServiceError):
    status = 401
    type = "authentication_error"


class PermissionDenied(ServiceError):
    status = 403
    type = "permission_error"


class NotFound(ServiceError):
    status = 404
    type = "not_found_error"


class ModelNotFound(NotFound):
    pass


class MethodNotAllowed(ServiceError):
    status = 405
    type = "invalid_request_error"


class RequestTimeout(ServiceError):
    status = 408
    type = "timeout_error"
    is_retryable = True


class IdempotencyConflict(ServiceError):
    """The same Idempotency-Key is being answered, and has not been for as long as may be waited."""

    status = 409
    type = "idempotency_error"
    is_retryable = True


class RequestTooLarge(ServiceError):
    status = 413
    type = "request_too_large"


class IdempotencyMismatch(ServiceError):
    """The Idempotency-Key belongs to another body."""

    status = 422
    type = "idempotency_error"


class RateLimited(ServiceError):
    """`retry_after_s` is when the limit has room for this request, if nobody takes it before."""

    status = 429
    type = "rate_limit_error"
    is_retryable = True


class Overloaded(ServiceError):
    status = 529
    type = "overloaded_error"
    is_retryable = True


class ShuttingDown(Overloaded):
    """The process drains; another one may answer at once."""


class Expired(ServiceError):
    status = 504
    type = "timeout_error"
    is_retryable = True


class ServerFault(ServiceError):
    """Our side broke; the caller did nothing wrong."""

    is_retryable = True


class InputFailed(ServerFault):
    """`run_batch` raised on this input alone, so the same input would fail again."""

    is_retryable = False


class BatchFailed(ServerFault):
    """`run_batch` raised on the request's batch, and the retry budget left no search for the culprit."""


class WorkerFailed(ServerFault):
    """The request's batch lost its worker, and no attempt or no retry budget is left."""


class BadOutput(ServerFault):
    """`run_batch` broke its contract (wrong number or type of outputs), and no attempt or no retry budget is left."""
