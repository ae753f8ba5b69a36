"""Batch mode: tiered queues, the policies that let a batch leave, inflight tracking, retries, and the dispatcher above them."""
