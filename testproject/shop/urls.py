from __future__ import annotations

from types import ModuleType

from django.urls import URLPattern, path

from . import views


def patterns(views: ModuleType) -> list[URLPattern]:
    """The shop's URLs with the views of a module, sync or async."""
    return [
        path("", views.index, name="index"),
        path("events/<int:pk>/buy/", views.buy, name="buy"),
        path("events/<int:pk>/buy/now/", views.buy_now, name="buy-now"),
        path("orders/<int:pk>/pay/", views.pay, name="pay"),
        path("events/<int:pk>/buy/unlocked/", views.buy_unlocked, name="buy-unlocked"),
        path("orders/<int:pk>/pay/unlocked/", views.pay_unlocked, name="pay-unlocked"),
        path("events/<int:pk>/buy/cache-lock/", views.buy_cache_lock, name="buy-cache-lock"),
        path("events/<int:pk>/buy/cache-lock/now/", views.buy_now_cache_lock, name="buy-now-cache-lock"),
        path("orders/<int:pk>/pay/cache-lock/", views.pay_cache_lock, name="pay-cache-lock"),
    ]


urlpatterns = patterns(views)
