"""One replica, continuous mode: which sequences run in the next step, and in which blocks. Ids only, never tensors."""
