"""Checks of what comes in and of what goes out (SPEC S3.6): the contract, rules from a file, and the stage that runs them."""
