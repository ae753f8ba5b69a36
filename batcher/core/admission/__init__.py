"""May a request enter? Estimates of its wait, and the gate that refuses what would wait too long."""
