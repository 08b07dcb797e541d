"""One process that simulates the tree it was started in, seed after seed, until one is red.

    python -m mutants.seeds TREE COUNT      PYTHONPATH = TREE, TREE/tests, TREE/tests/simulation

Prints a line of JSON for each seed: {"seed": n, "red": what was wrong, or null}. It ends with the
first red one, or after seeds 0 to COUNT - 1.
"""

import json
import sys
from pathlib import Path

from simulated.run import simulate

import delayd

RED_CHARS_MAX = 300


def simulate_until_red(count: int) -> None:
    """Every line is printed as soon as its seed has ended."""
    for seed in range(count):
        problem = simulate(seed).problem
        red = None if problem is None else problem.splitlines()[-1][:RED_CHARS_MAX]
        print(json.dumps({"seed": seed, "red": red}), flush=True)
        if red is not None:
            return


if __name__ == "__main__":
    _, tree, seeds_count = sys.argv
    assert delayd.__file__ is not None and Path(delayd.__file__).is_relative_to(tree), (
        f"{delayd.__file__} is not of the tree under test, {tree}"
    )
    simulate_until_red(int(seeds_count))
