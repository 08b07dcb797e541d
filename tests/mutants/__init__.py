"""Mutants: the safety rules, each broken once on purpose, to see whether anything notices.

    mutant.py       what a mutant is, and how it is applied to a copy of the tree
    catalogue/      all of them, as data, by the part of the protocol that they break
    seeds.py        one process that simulates a tree, seed after seed, until something is wrong
    hunt.py         one mutant: copied, applied, simulated, tested
    page.py         docs/design/mutants.md, as rows
    __main__.py     `make mutants`

A mutant that nothing catches is a missing test. Nothing here runs in the fast loop but
`test_mutants.py`, which sees to it that each mutation still fits the tree.
"""
