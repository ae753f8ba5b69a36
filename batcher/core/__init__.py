"""The policy: what to admit, what runs together, when it leaves, what happens when a worker fails.

Nothing here performs I/O, reads a clock, starts a thread or draws ambient randomness. Inputs are verbs that take
`now` in seconds, change state and return effects, in order; `next_deadline()` says when to call `tick` next. So the
live service and the simulator run the very same code.
"""
