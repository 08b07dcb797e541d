"""Clusters of real processes on this machine, as `delayd dev up` makes them, to be broken.

`cluster.py` is the backend, `startup.py` starts it with a wire between each node and each server,
`harm.py` fills disks and flips bytes, `clocked_node.py` is a node with a clock that can go wrong.

No other part of chaos knows delayd's code, and this one knows only the code that starts processes.
"""
