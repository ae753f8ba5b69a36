"""Between bytes and types, without I/O: one module for each grammar that callers speak, and what all of them share."""
