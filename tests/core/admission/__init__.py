"""Admission, module by module."""
