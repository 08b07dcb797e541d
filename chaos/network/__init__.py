"""The network between nodes and the rest, as far as the harness can disturb it.

`link.py` is one wire: a TCP proxy that can be cut, slowed and made lossy. `wires.py` holds all of
them, in a thread of its own.
"""
