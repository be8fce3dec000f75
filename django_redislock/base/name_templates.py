"""Texts with fields that are filled for each call: ``"order:{pk}"``."""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .display import shown
from .log import is_ours, warn
from .names import MAX_NAME_BYTES, capped_name, exact, lock_digest, quote, text_of

DIGEST = "digest"  # the format that stands for lock_digest()
_CONVERSIONS: dict[str, Callable[[Any], str]] = {"a": ascii, "r": repr, "s": str}
_FIELD = re.compile(r"[^\W\d]\w*(\.\w+|\[[^]]+\])*")


def has_fields(text: str) -> bool:
    """Return whether ``text``, taken as a template, has fields to fill."""
    try:
        return any(field is not None for _, field, _, _ in string.Formatter().parse(text))
    except ValueError:  # a lone brace
        return False


def warn_of_fields(name: str) -> None:
    """Warn of a ``name`` that looks like a template where it is none. For constructors.

    Names that our own code gives them are made of templates, or typed in a shell: "{{pk}}" is "{pk}" by now.
    """
    if has_fields(name) and not is_ours(sys._getframe(2)):
        warn(f"Lock({name!r}) locks this very name: only decorators fill templates. Use lock_name() or an f-string.")


class _Formatter(string.Formatter):
    """``str.format``. In a name, values are quoted after their format spec was applied, and have text_of() alone."""

    def __init__(self, quoted: bool) -> None:
        self._quoted = quoted

    def _text(self, value: Any, make: Callable[[Any], str]) -> str:
        return text_of(value, make) if self._quoted else make(exact(value))

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return value if conversion is None else self._text(value, _CONVERSIONS[conversion])

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == DIGEST:
            text = lock_digest(value)
        else:
            text = self._text(value, (lambda it: format(it, format_spec)) if format_spec else str)
        return quote(text) if self._quoted else text


class Template:
    """A text with fields, such as ``"{order.pk} by {user}"``, filled by :meth:`fill`.

    ``noun`` is what the text is, for errors. ``quoted``: as by :func:`lock_name`, values are quoted, and what is too
    long is cut. Raises ``ValueError`` at once for a template that can never be filled, and for one whose values could
    choose its length or reach what is private.
    """

    def __init__(self, template: str, noun: str, *, quoted: bool = False) -> None:
        if not isinstance(template, str):
            raise TypeError(f"A {noun} must be a str, not {shown(template)}.")
        self.template = template
        self.noun = noun
        self.quoted = quoted
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ValueError(f"The {noun} {template!r} is not a valid template: {error}.") from None
        self.fields: frozenset[str] = frozenset(
            self._check_field(name, spec or "", how) for _, name, spec, how in parsed if name is not None
        )
        self._text: str | None = None if self.fields else template.format()  # {{ is {

    def _check_field(self, field: str, spec: str, conversion: str | None) -> str:
        """The name of the value that the field shows."""
        value, *attributes = re.sub(r"\[[^]]*\]", "", field).split(".")
        if not _FIELD.fullmatch(field):
            trouble = f"that is not a plain name: write {{pk}}, {{user.pk}} or {{items[0]}}, not {{{field}}}"
        elif private := next((name for name in attributes if name.startswith("_")), None):
            trouble = f"with the private attribute {private!r}: {{{field}}}"
        elif "{" in spec:
            trouble = f"whose format contains another field: {{{field}:{spec}}}. A value must not choose the length"
        elif any(int(number) > MAX_NAME_BYTES for number in re.findall(r"\d+", spec)):
            trouble = f"whose format is too long: {{{field}:{spec}}}. At most {MAX_NAME_BYTES} characters are allowed"
        elif conversion not in (None, *_CONVERSIONS):
            trouble = f"with the unknown conversion {conversion!r}: {{{field}!{conversion}}}. Write !a, !r or !s"
        else:
            return value
        raise ValueError(f"The {self.noun} {self.template!r} has a field {trouble}.")

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text. A field that ``values`` lacks raises ``ValueError``, which lists their names."""
        if self._text is not None:
            return self._text
        try:
            text = _Formatter(self.quoted).vformat(self.template, (), values)
        except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"Cannot fill the {self.noun} {self.template!r}: {type(error).__name__}: {error}. "
                f"Available values: {', '.join(sorted(values)) or 'none'}."
            ) from error
        return capped_name(text) if self.quoted else text
