"""Names of locks made from the arguments of a call; what the decorators share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .name_templates import NameTemplate

Name = str | Callable[..., str]


def name_maker(name: Name) -> Callable[..., str]:
    """A function (signature, args, kwargs, **more values) that makes the lock's name for one call."""
    if not isinstance(name, str) and callable(name):
        return lambda signature, args, kwargs, **more: name(*args, **kwargs)
    template = NameTemplate(name)

    def fill(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], **more: Any) -> str:
        return template.fill({**_arguments(signature, args, kwargs), **more})

    return fill


def template_of(name: Name) -> str:
    """``name`` as it was written; of a callable, where that is."""
    if isinstance(name, str):
        return name
    return f"{getattr(name, '__module__', '')}.{getattr(name, '__qualname__', type(name).__name__)}"


def _arguments(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The arguments of a call by their names, defaults included, ``**kwargs`` flattened."""
    if signature is None:
        return kwargs
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            values.update(values.pop(parameter.name))
    return values


def refuse_generators(function: Callable[..., Any], decorator: str) -> None:
    """Raise TypeError for a generator function: a lock around the call that makes a generator guards nothing."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{decorator} cannot decorate {function!r}: generators run after the call has returned, when the lock "
            f"is free again."
        )
