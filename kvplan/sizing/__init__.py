"""How large a pool must be, and how long a request may be. Pure functions of a deployment."""

from kvplan.sizing.alternatives import Alternative
from kvplan.sizing.cautions import Caution
from kvplan.sizing.cost import GroupCost
from kvplan.sizing.longest_request import GroupUse, LongestRequest, RequestFit, max_request
from kvplan.sizing.pool_size import Binding, GroupSize, PoolFit, PoolSize, Verdict, size_pool

__all__ = [
    "Alternative",
    "Binding",
    "Caution",
    "GroupCost",
    "GroupSize",
    "GroupUse",
    "LongestRequest",
    "PoolFit",
    "PoolSize",
    "RequestFit",
    "Verdict",
    "max_request",
    "size_pool",
]
