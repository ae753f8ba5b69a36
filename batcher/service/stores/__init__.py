"""Where what outlives a request is kept: in this process, in Redis, on disk."""
