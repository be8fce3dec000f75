"""Views that answer with nothing, to be decorated."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views import View


def respond(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def arespond(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Page(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()
