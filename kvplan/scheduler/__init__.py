"""The engine's scheduler: its public API, name by name."""

from kvplan.scheduler.capacity import CapacityModel
from kvplan.scheduler.config import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    SchedulerConfig,
)
from kvplan.scheduler.events import PD, Cache, ExecutionEvent, ForwardEvent, KVEvent
from kvplan.scheduler.plan import ExecutionPlan, Forward
from kvplan.scheduler.request import RequestSpec
from kvplan.scheduler.scheduler import Scheduler

__all__ = [
    "PD",
    "Cache",
    "CacheGroupConfig",
    "CacheGroupFamily",
    "CacheRetention",
    "CacheTransferPolicy",
    "CapacityModel",
    "ExecutionEvent",
    "ExecutionPlan",
    "Forward",
    "ForwardEvent",
    "KVEvent",
    "RequestSpec",
    "Scheduler",
    "SchedulerConfig",
]
