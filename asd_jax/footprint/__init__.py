"""What a target with a drafter needs on each device of a mesh, found without allocating it.

`chips` names accelerators, `weights` lays a target out on a mesh as shapes only, `drafter_sizes`
knows what the trained drafters hold, `program` compiles the decode loop for shapes, `collectives`
reads what its devices exchange, and `report` adds it all up.
"""

from asd_jax.footprint.chips import CHIPS, Chip
from asd_jax.footprint.drafter_sizes import FAMILIES, DrafterSizes
from asd_jax.footprint.program import Workload
from asd_jax.footprint.report import Footprint, measure

__all__ = ["CHIPS", "FAMILIES", "Chip", "DrafterSizes", "Footprint", "Workload", "measure"]
