"""What can be wrong with a plan."""


class PlanError(ValueError):
    """Base class of all errors."""


class UnknownTaskError(PlanError):
    def __init__(self, name, needed_by=None):
        self.name = name
        self.needed_by = needed_by
        message = "unknown task %r" % name
        if needed_by is not None:
            message += ", needed by %r" % needed_by
        super().__init__(message)


class CycleError(PlanError):
    """`cycle` is the list of tasks, the first one repeated at the end."""

    def __init__(self, cycle):
        self.cycle = list(cycle)
        super().__init__("dependency cycle: " + " -> ".join(self.cycle))
