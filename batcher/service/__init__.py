"""The live shell: sockets, clocks, workers. It performs what the core decides and decides nothing itself."""
