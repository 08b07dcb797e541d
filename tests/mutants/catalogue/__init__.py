"""The catalogue: every mutant there is, as data."""

from mutants.catalogue.election import ELECTION
from mutants.catalogue.ids import IDS
from mutants.catalogue.progress import PROGRESS
from mutants.catalogue.steps import STEPS
from mutants.catalogue.storage import STORAGE
from mutants.catalogue.takeover import TAKEOVER
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *TAKEOVER,
    *PROGRESS,
    *STEPS,
    *IDS,
    *STORAGE,
    *ELECTION,
)
"""In the order of docs/design/mutants.md."""
