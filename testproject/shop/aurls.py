from __future__ import annotations

from . import aviews
from .urls import patterns

urlpatterns = patterns(aviews)
