"""Decoder-only transformers in torch, with paged KV: a StepBackend of the real kind."""

import os

# Threads of a CPU wait for each other some 250 times in a step. By default they spin for milliseconds first, and on a machine
# that has anything else to do (an event loop, say) steps then took ten times as long; so short a spin still covers the waits of
# an undisturbed step. The OpenMP library of torch reads this when it is loaded, so it stands before any import of torch.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
