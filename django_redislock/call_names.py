"""Names, notes and tokens of locks made from the arguments of a call; what the decorators share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, update_wrapper
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeGuard, TypeVar

from .base.display import shown
from .base.name_templates import Template
from .base.names import check_name, check_token

if sys.version_info >= (3, 14):  # pragma: no cover
    import annotationlib

    # annotations may name what is imported for type checkers only
    _LENIENT = {"annotation_format": annotationlib.Format.FORWARDREF}
else:
    _LENIENT: Any = {}

Name = str | Callable[..., str]
Names = Name | Sequence[Name]  # several names: several locks
W = TypeVar("W", bound=Callable[..., Any])


class CallTexts:
    """The name, the note and the token of a lock, made from the arguments of each call; or the names of several locks.

    All are templates; a name may be a callable, which takes the arguments.
    """

    def __init__(self, name: Names | None, note: str = "", token: str | None = None) -> None:
        names = name if are_several(name) else [name]
        self._names = [_maker(one) for one in names]
        # what the names are made of, where there are several
        self._written = [template_of(one) for one in names] if are_several(name) else [""]
        self._note = Template(note, "note")
        self._token = None if token is None else Template(token, "token")
        for made in self._names:
            if isinstance(made, Template) and not made.fields:
                check_name(made.fill({}))
        if self._token is not None and not self._token.fields:
            check_token(self._token.fill({}))
        texts = (*self._names, self._note, self._token)
        self._templates = [text for text in texts if isinstance(text, Template) and text.fields]

    def check(self, function: Callable[..., Any], signature: inspect.Signature, *more: str) -> None:
        """Raise ValueError for a field that no call of ``function`` can fill. ``more``: values beside its arguments."""
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
            return
        self._refuse_missing({*signature.parameters, *more}, f"{_called(function)}() has no argument")

    def fill(
        self,
        function: Callable[..., Any],
        signature: inspect.Signature,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        trouble: str = "it was called without",
        **more: Any,
    ) -> tuple[dict[str, str], str, str | None]:
        """Names (of several locks with what each was made of), note and token for one call of ``function``.

        ``more``: values for them beside its arguments.

        ``trouble``: what ValueError says before the name of a field that is none of them.
        """
        values: dict[str, Any] = {}
        if self._templates:
            try:
                values = _arguments(signature, args, kwargs)
            except TypeError as error:
                # a decorator in between may change the arguments, as those of views do
                values = {**({} if args else _defaults(signature)), **kwargs}
                filled = all(text.fields <= values.keys() for text in self._templates)
                if not more and not (filled and hasattr(function, "__wrapped__")):
                    raise TypeError(f"{_called(function)}() {error}") from None
            values.update(more)
        self._refuse_missing(values.keys(), trouble)
        names = [made.fill(values) if isinstance(made, Template) else made(*args, **kwargs) for made in self._names]
        token = None if self._token is None else check_token(self._token.fill(values))
        return dict(zip(map(check_name, names), self._written, strict=True)), self._note.fill(values), token

    def _refuse_missing(self, available: Collection[str], trouble: str) -> None:
        for text in self._templates:
            if missing := min(text.fields.difference(available), default=None):
                raise ValueError(
                    f"Cannot fill the {text.noun} {text.template!r}: {trouble} {missing!r}. "
                    f"Available values: {', '.join(sorted(available)) or 'none'}."
                )


def _maker(name: Any) -> Template | Callable[..., str]:
    if isinstance(name, str):
        return Template(name, "lock name", quoted=True)
    if not callable(name):
        raise TypeError(f"A lock's name must be a str or a callable, not {shown(name)}.")
    return name  # type: ignore[no-any-return]


def are_several(name: object) -> TypeGuard[Sequence[Name]]:
    """Return whether this is a list of names."""
    return isinstance(name, (list, tuple))


def template_of(name: Names | None) -> str:
    """``name`` as it was written; of a callable, where that is; empty for none, and for a list."""
    if name is None or are_several(name):
        return ""
    if isinstance(name, str):
        return name
    return f"{getattr(name, '__module__', '')}.{getattr(name, '__qualname__', type(name).__name__)}"


def _defaults(signature: inspect.Signature) -> dict[str, Any]:
    return {name: each.default for name, each in signature.parameters.items() if each.default is not each.empty}


def _arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names, defaults included; ``**kwargs`` flattened, below positional-only ones."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            values = {**values.pop(parameter.name), **values}
    return values


def is_decorated(given: object) -> bool:
    """Return whether this first argument of a decorator is the function below it: the decorator has no parentheses.

    A lambda stands below no decorator, so it makes the name.
    """
    return callable(given) and not (inspect.isfunction(given) and given.__code__.co_name == "<lambda>")


def given_name(first: Names | None, name: Names | None, decorator: str, token: object = None) -> Names | None:
    """The name that a decorator was given, or a list of them: its ``first`` argument, or the keyword ``name``."""
    if is_decorated(first):
        raise TypeError(
            f"{decorator} was given {shown(first)} where the name of a lock was expected: write "
            f'@{decorator}("order:{{pk}}"), or {decorator}(name=...) for a function that makes the name.'
        )
    if first is not None and name is not None:
        raise TypeError(f"{decorator} takes one name, not both {shown(first)} and name={shown(name)}.")
    given = name if first is None else first
    if are_several(given) and (not given or token is not None):
        trouble = "a list without a name" if not given else "a token, which is for one lock, with a list of names"
        raise ValueError(f"{decorator} was given {trouble}.")
    return given


def check_function(function: Callable[..., Any], decorator: str) -> inspect.Signature:
    """The signature of a function that is to be decorated.

    Raises TypeError for what would not run under the lock (a task, a generator function), for a class, which would be
    replaced by a function, and for what has no signature, as some builtins.
    """
    if isinstance(function, (staticmethod, classmethod, property)):
        kind = type(function).__name__
        raise TypeError(f"{decorator} cannot decorate a {kind}: put it below @{kind}.")
    refuse_tasks(function, decorator)
    refuse_generators(function, decorator)
    if isinstance(function, type):
        raise TypeError(f"{decorator} cannot decorate the class {function.__qualname__}: decorate its methods.")
    try:
        return signature_of(function)
    except ValueError as error:
        raise TypeError(f"{decorator} cannot decorate {function!r}: {error}. Decorate a function around it.") from None


def signature_of(function: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
    """Return the signature by which ``function`` is called, whatever the annotations name.

    What takes anything is taken to pass it on to the function inside it. ``method_decorator`` hands over a bound method
    that claims the signature of its function, ``self`` included; this returns the bound method's.
    """
    try:
        own = inspect.signature(function, follow_wrapped=False, **_LENIENT)
    except ValueError:  # C code, as that of functools.lru_cache
        if not hasattr(function, "__wrapped__"):
            raise
    else:
        kinds = {each.kind for each in own.parameters.values()}
        if not follow_wrapped or kinds.isdisjoint((inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)):
            return own
    inner = inspect.unwrap(function, stop=lambda each: isinstance(each, partial) or hasattr(each, "__signature__"))
    if isinstance(inner, partial) and hasattr(inner, "__wrapped__"):
        function = partial(inner.func, *inner.args, **inner.keywords)
    return inspect.signature(function, **_LENIENT)


def wraps(function: Callable[..., Any]) -> Callable[[W], W]:
    """Return ``functools.wraps``, also for tools that do not follow ``__wrapped__``, such as Celery at ``delay()``.

    A decorator between them may change the arguments, so where there is one, it is not looked through.
    """

    def dress(wrapper: W) -> W:
        update_wrapper(wrapper, function)
        if not hasattr(function, "__name__"):  # an object: it goes by its class, as Django says it
            wrapper.__name__, wrapper.__qualname__ = type(function).__name__, type(function).__qualname__
        if not hasattr(function, "__wrapped__"):
            signature = _evaluated_where_possible(signature_of(function), function)
            if [*signature.parameters] != ["args", "kwargs"]:  # method_decorator copies what it finds on such a dummy
                wrapper.__signature__ = signature  # type: ignore[attr-defined]
        return wrapper

    return dress


def _evaluated_where_possible(signature: inspect.Signature, function: Callable[..., Any]) -> inspect.Signature:
    """Annotations may name what is defined later, or for type checkers alone: these stay as they are."""

    # an object has none, but the function by which its class is called
    known = getattr(function, "__globals__", None) or getattr(type(function).__call__, "__globals__", {})

    def value(annotation: Any) -> Any:
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, known)
        except Exception:
            return annotation

    parameters = [each.replace(annotation=value(each.annotation)) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=value(signature.return_annotation))


def refuse_generators(function: Callable[..., Any], decorator: str) -> None:
    """Raise TypeError for a generator function: a lock around the call that makes a generator guards nothing."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise _runs_late(function, decorator)


def refuse_body(function: Callable[..., Any], result: Any, decorator: str) -> None:
    """Raise TypeError where the body of the function has not run: it is a generator or a coroutine after all.

    A decorator in between, or an object that is called, hides that until it is called.
    """
    kind = type(result)  # not isinstance(): it may be lazy
    if kind is CoroutineType:
        result.close()  # else Python warns that nobody has awaited it
        raise _runs_late(function, decorator)
    if issubclass(kind, (AbstractContextManager, AbstractAsyncContextManager)):
        result = getattr(result, "gen", None)  # that of @contextmanager, which a with block has yet to run
    if type(result) in (GeneratorType, AsyncGeneratorType):  # it may be another one than the function's own
        inner: Any = inspect.unwrap(function)
        code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
        if code in [getattr(result, f"{prefix}_code", function) for prefix in ("gi", "ag")]:
            raise _runs_late(function, decorator)


def _runs_late(function: Callable[..., Any], decorator: str) -> TypeError:
    return TypeError(
        f"{decorator} cannot lock {function!r}: generators and coroutines run after the call has returned, when "
        f"the lock is free again. If a decorator hides that it is async, let that one use functools.wraps, or "
        f"asgiref.sync.markcoroutinefunction."
    )


# what decorators of tasks add, which queues the function below them: Celery, RQ and Taskiq; Dramatiq; Django; Huey ...
_QUEUEING = ("delay", "apply_async", "kiq", "send_with_options", "enqueue", "call_local", "defer")


def refuse_tasks(function: object, decorator: str) -> None:
    """Raise TypeError for a task: the registered one would run unlocked, and what queues it would be gone."""
    if any(callable(getattr(function, name, None)) for name in _QUEUEING):
        raise TypeError(
            f"{decorator} cannot decorate the task {shown(function)}: workers would run it unlocked. Put @{decorator} "
            f"below the task's decorator."
        )


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or shown(function)
