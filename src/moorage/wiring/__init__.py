"""Settings -> running parts: the only place that knows all of them. It holds no logic of its own.

Each thing to run has a module of its own, so that it does not import the libraries of the others.
"""
