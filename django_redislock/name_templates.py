"""Names with fields that are filled for each call: ``"order:{pk}"``."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from .display import shown
from .names import capped_name, check_name, quote


def has_fields(text: str) -> bool:
    """Whether ``text``, taken as a template, has fields to fill."""
    try:
        return any(field is not None for _, field, _, _ in string.Formatter().parse(text))
    except ValueError:  # a lone brace
        return False


class _QuotingFormatter(string.Formatter):
    """``str.format`` whose values are quoted after their format spec was applied."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if key not in kwargs:
            raise KeyError(key)
        return kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        return quote(super().format_field(value, format_spec))


class NameTemplate:
    """A name with fields, such as ``"order:{pk}"`` or ``"user:{request.user.pk}"``, filled by :meth:`fill`.

    Values are quoted, and a name that is too long is cut, as by :func:`lock_name`. Raises ``ValueError`` at once for a
    template that can never be filled.
    """

    _formatter = _QuotingFormatter()

    def __init__(self, template: str) -> None:
        if not isinstance(template, str):
            raise TypeError(f"A lock's name must be a str or a callable, not {shown(template)}.")
        try:
            fields = [field for _, field, _, _ in self._formatter.parse(template) if field is not None]
        except ValueError as error:
            raise ValueError(f"The lock name {template!r} is not a valid template: {error}.") from None
        for field in fields:
            if not re.match(r"[^\W\d]", field):
                raise ValueError(
                    f"The lock name {template!r} has a field without a name: write {{pk}}, not {{{field}}}."
                )
        self.template = template
        self._plain = None if fields else check_name(self._formatter.vformat(template, (), {}))

    def fill(self, values: Mapping[str, Any]) -> str:
        """The name. A field that ``values`` lacks raises ``ValueError``, which lists their names."""
        if self._plain is not None:
            return self._plain
        try:
            name = self._formatter.vformat(self.template, (), values)
        except (KeyError, AttributeError, IndexError, TypeError) as error:
            raise ValueError(
                f"Cannot fill the lock name {self.template!r}: {type(error).__name__}: {error}. "
                f"Available values: {', '.join(sorted(values)) or 'none'}."
            ) from error
        return capped_name(name)
