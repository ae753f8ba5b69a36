"""API keys that are kept in a file: the file itself, and the command that changes it."""
