"""Clusters of real processes on this machine, in the manner of `delayd dev up`, made to be broken.

`cluster.py` is the backend, `startup.py` starts it with a wire between each node and each server,
`harm.py` fills disks and flips bytes, `clocked_node.py` is a node with a clock that can go wrong.

This is the only part of chaos that knows delayd's code, and it knows only what starts processes.
"""
