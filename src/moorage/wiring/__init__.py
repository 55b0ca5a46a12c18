"""Settings -> running parts: the only place that knows all of them, and holds no logic of its own.

One module for each thing to run, since neither needs the libraries of the other.
"""
