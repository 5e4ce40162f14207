"""A user's own playbook: a Python file with `steps(node, cluster, facts)`, made into a Playbook.

    NAME = "nfs"                                # else the file's name
    TAGS = ("storage",)
    def steps(node, cluster, facts): ...        # the steps for one node
    def needs(node, cluster): ...               # nodes that must have done all earlier playbooks
    def after(node, cluster): ...               # nodes that are waited for, whether they fail or not

Or with `PLAYBOOKS`, a tuple of Playbooks, where one file says what is done in several stages. Whatever is
wrong with it is told by file and line.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from provision.errors import SettingsError, StepError, place_in
from provision.model import Cluster, Node
from provision.play import Facts, Playbook, nobody
from provision.step import Step

_STEP_PARTS = ("name", "probe", "drift", "apply")


class _Loader(SourceFileLoader):
    """Leaves no __pycache__ beside the user's file."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        return None


def load_playbooks(path: Path) -> tuple[Playbook, ...]:
    """The playbooks of a file. Raises SettingsError: no such file, not Python, not a playbook."""
    module = _imported(path)
    several = getattr(module, "PLAYBOOKS", None)
    if several is None:
        return (_from_functions(module, path),)
    if not isinstance(several, (tuple, list)) or not all(isinstance(each, Playbook) for each in several):
        raise SettingsError(f"{path}: PLAYBOOKS is to be a tuple of provision.play.Playbook")
    return tuple(replace(each, steps=_checked(each.steps, path), source=path) for each in several)


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise SettingsError(f"{path}: no such playbook")
    name = f"clusterctl_playbook_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look their types up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SettingsError(place_in(path, error)) from error
    return module


def _from_functions(module: ModuleType, path: Path) -> Playbook:
    name, tags = getattr(module, "NAME", path.stem), getattr(module, "TAGS", ())
    if not isinstance(name, str) or not name:
        raise SettingsError(f"{path}: NAME is to be a text, not {name!r}")
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise SettingsError(f'{path}: TAGS is to be a tuple of texts: ("storage",)')
    return Playbook(
        name,
        _checked(_function(module, path, "steps", ("node", "cluster", "facts")), path),
        tuple(tags),
        needs=_others(module, path, "needs"),
        after=_others(module, path, "after"),
        source=path,
    )


def _function(module: ModuleType, path: Path, name: str, parameters: Sequence[str]) -> Callable[..., Any]:
    """The module's function of that name. Raises SettingsError when it takes something else."""
    function = getattr(module, name, None)
    wanted = f"{name}({', '.join(parameters)})"
    if not callable(function):
        raise SettingsError(f"{path}: no function {wanted}; a playbook is a file that has one")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        line = inspect.unwrap(function).__code__.co_firstlineno
        raise SettingsError(f"{path}:{line}: {name} is to be {wanted}") from None
    found: Callable[..., Any] = function
    return found


def _others(module: ModuleType, path: Path, name: str) -> Callable[[Node, Cluster], Sequence[Node]]:
    if not hasattr(module, name):
        return nobody
    function = _function(module, path, name, ("node", "cluster"))

    def others(node: Node, cluster: Cluster) -> Sequence[Node]:
        try:
            found = tuple(function(node, cluster))
        except Exception as error:
            raise StepError(place_in(path, error)) from error
        if not all(isinstance(each, Node) for each in found):
            line = function.__code__.co_firstlineno
            raise StepError(f"{path}:{line}: {name} is to return nodes, not {found!r}")
        return found

    return others


def _checked(function: Callable[..., Any], path: Path) -> Callable[[Node, Cluster, Facts], Sequence[Step]]:
    """The function, its errors told by file and line, and what it returns looked at."""
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)

    def steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
        try:
            planned = function(node, cluster, facts)
            found = tuple(planned) if isinstance(planned, Iterable) else None
        except KeyError as error:
            raise StepError(f"{place_in(path, error)}{_hint(error, cluster)}") from error
        except StepError:
            raise
        except Exception as error:
            raise StepError(place_in(path, error)) from error
        if found is None:
            raise StepError(f"{path}:{line}: steps returned {planned!r}, and is to return a list of steps")
        for step in found:
            problem = _problem(step)
            if problem:
                raise StepError(f"{path}:{line}: {problem}")
        return found

    steps.__doc__ = function.__doc__ or sys.modules[function.__module__].__doc__
    return steps


def _hint(error: KeyError, cluster: Cluster) -> str:
    """The likeliest mistake: facts of a node that was not waited for."""
    if error.args and error.args[0] in {node.name for node in cluster.nodes}:
        return "; facts are there of the node itself, and of those that `needs` or `after` name"
    return ""


def _problem(step: object) -> str | None:
    """What keeps something from being a step."""
    lacking = [part for part in _STEP_PARTS if not hasattr(step, part)]
    if lacking:
        return f"{step!r} is no step: it has no {', '.join(lacking)}"
    try:
        hash(step)
    except TypeError:
        return f"{type(step).__name__} is to be a frozen dataclass with tuples for lists: it has no hash"
    return None
