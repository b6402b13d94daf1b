"""Request traces: formats in, one table out; checks, facts, synthesis. Imports nothing else of kvplan."""

from kvplan.traces.errors import TraceError
from kvplan.traces.formats import NAMES as FORMAT_NAMES
from kvplan.traces.read import read_trace
from kvplan.traces.trace import Trace

__all__ = ["FORMAT_NAMES", "Trace", "TraceError", "read_trace"]
