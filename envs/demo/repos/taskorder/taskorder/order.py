"""The order of tasks."""
from .errors import CycleError, UnknownTaskError


def order(plan, only=None):
    """Tasks of `plan` such that dependencies come first.

    `plan` maps each task to its dependencies. With `only`, a list of tasks, just these and
    what they need are ordered.
    """
    result = []
    for name in _wanted(plan, only):
        _visit(plan, name, [], result)
    return result


def _wanted(plan, only):
    if only is None:
        return list(plan)
    for name in only:
        if name not in plan:
            raise UnknownTaskError(name)
    return only


def _visit(plan, name, path, result):
    if name in path:
        raise CycleError(path + [name])
    if name in result:
        return
    for dependency in plan[name]:
        if dependency not in plan:
            raise UnknownTaskError(dependency, name)
        _visit(plan, dependency, path + [name], result)
    result.append(name)
