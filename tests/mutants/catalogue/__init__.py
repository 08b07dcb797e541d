"""The catalogue: every mutant there is, as data."""

from mutants.catalogue.backups import BACKUPS
from mutants.catalogue.cancel_on import CANCEL_ON
from mutants.catalogue.comparing import COMPARING
from mutants.catalogue.debounces import DEBOUNCES
from mutants.catalogue.election import ELECTION
from mutants.catalogue.groups import GROUPS
from mutants.catalogue.http_api import HTTP_API
from mutants.catalogue.id_runs import ID_RUN_MUTANTS
from mutants.catalogue.ids import IDS
from mutants.catalogue.importing import IMPORTING
from mutants.catalogue.local_times import LOCAL_TIMES
from mutants.catalogue.markers import MARKERS
from mutants.catalogue.months import MONTHS
from mutants.catalogue.moves import MOVES
from mutants.catalogue.pauses import PAUSES
from mutants.catalogue.progress import PROGRESS
from mutants.catalogue.quotas import OF_TARGETS
from mutants.catalogue.recovering import RECOVERING_MUTANTS
from mutants.catalogue.repairing import REPAIRING
from mutants.catalogue.repeated import REPEATED_REQUESTS
from mutants.catalogue.reschedules import RESCHEDULES
from mutants.catalogue.series import SERIES
from mutants.catalogue.shards import SHARDS
from mutants.catalogue.snapshots import SNAPSHOTS
from mutants.catalogue.steps import STEPS
from mutants.catalogue.storage import STORAGE
from mutants.catalogue.takeover import TAKEOVER
from mutants.catalogue.upgrades import UPGRADES
from mutants.catalogue.virtual_time import VIRTUAL_TIME
from mutants.catalogue.wishes import WISHES
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *TAKEOVER,
    *PROGRESS,
    *STEPS,
    *IDS,
    *STORAGE,
    *ID_RUN_MUTANTS,
    *SNAPSHOTS,
    *BACKUPS,
    *COMPARING,
    *REPAIRING,
    *MONTHS,
    *MOVES,
    *MARKERS,
    *RECOVERING_MUTANTS,
    *ELECTION,
    *UPGRADES,
    *REPEATED_REQUESTS,
    *HTTP_API,
    *WISHES,
    *CANCEL_ON,
    *SERIES,
    *LOCAL_TIMES,
    *RESCHEDULES,
    *DEBOUNCES,
    *GROUPS,
    *PAUSES,
    *OF_TARGETS,
    *SHARDS,
    *VIRTUAL_TIME,
    *IMPORTING,
)
"""In the order of docs/design/mutants.md."""
