"""Snapshots of a running node: `donor.py` gives its wheel, `fetching.py` gets another node's."""
