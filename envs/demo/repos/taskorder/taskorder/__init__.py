"""Order tasks by their dependencies."""
from .errors import CycleError, PlanError, UnknownTaskError
from .order import order
from .plan import parse_plan

__all__ = ["CycleError", "PlanError", "UnknownTaskError", "order", "parse_plan"]
