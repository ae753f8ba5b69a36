"""The pretence: the core on a virtual clock, with seeded traffic and faults, and checkers that stand apart from it."""
