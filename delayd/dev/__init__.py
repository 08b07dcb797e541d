"""The local cluster: real Kafka, real etcd and delayd nodes as processes of this machine.

For development, tests, demos and chaos. Not for production: everything listens on loopback and
lives in one folder.

Invariant: whatever a cluster started is gone after `down`, and after an `up` that failed or was
interrupted. Every process carries its cluster's folder in its environment, so this holds even
when the state file is lost.
"""
