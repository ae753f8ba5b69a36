"""Named measurements of batcher against its bars, each one command: `loadtest scenario NAME`.

A scenario is data and one function: it starts the real server in a process of its own, offers traffic, and answers with
figures, each beside its bar. They share all of their code with `loadtest run`. None of them is a test, since a busy machine
can make any figure worse.
"""
