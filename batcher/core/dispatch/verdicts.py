"""What counts as outputs, and the words in which a request is told why it has none: they name the fault, never an input."""

from math import ceil

from batcher.core.dispatch.inflight import Batch
from batcher.core.effects import Refuse
from batcher.errors import (
    MAX_RETRY_AFTER_S,
    NO_WORKER_RETRY_AFTER_S,
    BadOutput,
    BatchFailed,
    Expired,
    InputFailed,
    Overloaded,
    ServiceError,
    WorkerFailed,
)
from batcher.types import Outcome, Request, WorkerFault


def read_outputs(outputs: object, num_inputs: int) -> list[str] | None:
    """What `run_batch` returned if it kept its contract, a list of one string for each input; else None.

    A tuple passes; a string does not, though its letters could be counted. Order cannot be seen from here.
    """
    if not isinstance(outputs, list | tuple) or len(outputs) != num_inputs:
        return None
    if not all(isinstance(output, str) for output in outputs):
        return None
    return [str.__str__(output) for output in outputs]  # A plain one of a subclass, and without calling what it overrides.


def describe_outputs(outputs: object, num_inputs: int) -> str:
    """What came instead: a number or a type, never a text of it."""
    if not isinstance(outputs, list | tuple):
        return f"a {type(outputs).__name__} for {num_inputs} inputs"
    if len(outputs) != num_inputs:
        return f"{len(outputs)} outputs for {num_inputs} inputs"
    odd = next(type(output).__name__ for output in outputs if not isinstance(output, str))
    return f"an output of type {odd}, which is no str,"


def expired(request: Request) -> Refuse:
    error = Expired(f"no answer within the request's {request.deadline_at - request.arrived_at:g} s")
    return Refuse(request, Outcome.EXPIRED, error)


def no_room(request: Request, num_waiting: int, rate: float) -> Refuse:
    """The queue's bound, not the wait budget, refused it or made it give way: until `num_waiting` have left at `rate`."""
    retry_after_s = min(max(1, ceil(num_waiting / rate)), MAX_RETRY_AFTER_S) if rate else NO_WORKER_RETRY_AFTER_S
    return Refuse(request, Outcome.REJECTED_CAPACITY, Overloaded("the queue is full", retry_after_s=retry_after_s))


def why_raised(batch: Batch) -> ServiceError:
    if len(batch.requests) == 1:
        return InputFailed("run_batch raised an exception on this input")
    return BatchFailed(f"run_batch raised on this batch of {len(batch.requests)}, and the retry budget is used up")


def why_lost(batch: Batch, fault: WorkerFault, returned: str) -> ServiceError:
    """`returned` describes the outputs where they were the fault."""
    if fault is WorkerFault.BAD_OUTPUT:
        return BadOutput(f"run_batch returned {returned} on attempt {batch.attempt}")
    return WorkerFailed(f"the worker was lost ({fault}) on attempt {batch.attempt} of this request")
