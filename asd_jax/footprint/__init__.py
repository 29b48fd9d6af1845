"""What a target with a drafter needs on each device of a mesh, found without allocating it.

`chips` names accelerators, `weights` lays a target out on a mesh as shapes only, `drafter_sizes`
knows what released drafters' files hold, `drafter` makes drafters of those shapes, `program`
compiles the decode loop for both, `collectives` reads what its devices exchange, and `report` adds
it all up.
"""

from asd_jax.footprint.chips import CHIPS, Chip
from asd_jax.footprint.drafter import DRAFTERS
from asd_jax.footprint.program import Workload
from asd_jax.footprint.report import Footprint, measure

__all__ = ["CHIPS", "DRAFTERS", "Chip", "Footprint", "Workload", "measure"]
