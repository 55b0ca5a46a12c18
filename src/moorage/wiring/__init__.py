"""From settings to running parts: the only package that knows all of them. It holds no logic of its own.

Each program has a module of its own, so that it does not import the libraries of the others.
"""
