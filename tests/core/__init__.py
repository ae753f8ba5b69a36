"""The core, literally: build, act at a given `now`, assert."""
