"""`pytest tests/simulation --seed N` replays one seed; without it some fixed and some fresh ones
run, and their names carry them."""

from random import SystemRandom

import pytest

FIXED_SEEDS = 50
FRESH_SEEDS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="simulate this seed only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    # Only registered if this folder was named on the command line.
    seed = metafunc.config.getoption("--seed", default=None)
    fresh = [SystemRandom().randrange(10**9) for _ in range(FRESH_SEEDS)]
    metafunc.parametrize("seed", [*range(FIXED_SEEDS), *fresh] if seed is None else [seed])
