"""What counts as outputs, and the words in which a request is told why it has none: they name the fault, never an input."""

from collections.abc import Sequence

from batcher.core.dispatch.inflight import Batch
from batcher.core.effects import Refuse
from batcher.errors import BadOutput, Expired, InputFailed, Overloaded, ServiceError, WorkerFailed
from batcher.types import Outcome, Request, WorkerFault


def are_outputs(outputs: Sequence[object], num_inputs: int) -> bool:
    """Whether `run_batch` kept its contract: one string for each input. Order cannot be seen from here."""
    return len(outputs) == num_inputs and all(type(output) is str for output in outputs)


def expired(request: Request) -> Refuse:
    error = Expired(f"no answer within the request's {request.deadline_at - request.arrived_at:g} s")
    return Refuse(request, Outcome.EXPIRED, error)


def no_room(request: Request) -> Refuse:
    """The queue's bound, not the wait budget, refused it or made it give way."""
    return Refuse(request, Outcome.REJECTED_CAPACITY, Overloaded("the queue is full", retry_after_s=1))


def why_raised(batch: Batch) -> ServiceError:
    if len(batch.requests) == 1:
        return InputFailed("run_batch raised an exception on this input")
    return InputFailed(f"run_batch raised on this batch of {len(batch.requests)}, and the retry budget is used up")


def why_lost(batch: Batch, fault: WorkerFault, num_outputs: int | None) -> ServiceError:
    if fault is WorkerFault.BAD_OUTPUT:
        return BadOutput(
            f"run_batch returned {num_outputs} outputs for {len(batch.requests)} inputs, or something that is no string, "
            f"on attempt {batch.attempt}"
        )
    return WorkerFailed(f"the worker was lost ({fault}) on attempt {batch.attempt} of this request")
