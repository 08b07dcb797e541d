"""`delayd plan`: what a cluster takes, worked out from figures that were measured.

`figures.py` holds the figures with their units and sources, `sizing.py` the arithmetic, both pure;
`showing.py` and `command.py` are the command. `docs/design/scale.md` prints the same figures.
"""
