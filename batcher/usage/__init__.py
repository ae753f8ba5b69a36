"""The usage log after it was written: reading it whatever happened to it, and adding it up for whoever bills."""
