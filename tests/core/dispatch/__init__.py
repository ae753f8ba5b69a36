"""Batch mode, module by module."""
