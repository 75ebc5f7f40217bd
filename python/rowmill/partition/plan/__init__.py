"""The CPU plan: the CPU half of a split as JSON, for a worker that needs no torch.

`format.py` describes the steps. `planner.py` goes through the operators of a part; `lookups.py`, `elements.py` and
`values.py` write their steps.
"""

from rowmill.partition.plan.format import NotNative, Step, dtype_name, shape_of, size_of
from rowmill.partition.plan.planner import plan_of

__all__ = ["NotNative", "Step", "dtype_name", "plan_of", "shape_of", "size_of"]
