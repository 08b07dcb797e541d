"""Comparing running nodes: a difference between two wheels is found before it matters.

| file | what it holds |
|---|---|
| `comparer.py` | the rounds: which node is compared with which, and what comes of a difference |
| `looking.py` | one look: the hours in which two sides differ, the messages in which several do |
| `findings.py` | what was found, as people see it |
| `ports.py` | the other nodes, the log and the repairer, as ports |
| `judging.py` | which node is wrong about a message, by the log or by the majority. Pure |
| `logged.py` | what the buffer's record of a message makes of it |
| `side.py` | what a comparison asks of one node, and this node as a side |
| `answering.py` | what this node answers to others |
| `service.py` | all of it, for a node to start and stop |
| `wire.py` | questions and answers as bytes |
| `peer.py` | another node as a side, over its admin port |

Invariants: two sides are compared at one cut, which each works out from the checkpoints of all; a
difference that was seen twice is told and never hidden; a difference changes no wheel and ends no
node.
Source: docs/design/storage.md, "Comparing running nodes".
"""
