from __future__ import annotations

from types import ModuleType

from django.urls import URLPattern, path

from . import views


def patterns(views: ModuleType) -> list[URLPattern]:
    """The shop's URLs with the views of a module: sync ones, or their twins."""
    return [
        path("", views.index, name="index"),
        path("events/<int:pk>/buy/", views.buy, name="buy"),
        path("events/<int:pk>/buy/now/", views.buy_now, name="buy-now"),
        path("events/<int:pk>/buy/fair/", views.buy_fair, name="buy-fair"),
        path("events/<int:pk>/buy/fair/now/", views.buy_fair_now, name="buy-fair-now"),
        path("events/<int:pk>/buy/unlocked/", views.buy_unlocked, name="buy-unlocked"),
        path("orders/<int:pk>/pay/", views.pay, name="pay"),
        path("orders/<int:pk>/pay/unlocked/", views.pay_unlocked, name="pay-unlocked"),
    ]


urlpatterns = patterns(views)
