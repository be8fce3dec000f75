from django.contrib import admin
from django.urls import path

from django_redislock.admin import LockAdmin
from django_redislock.models import HeldLock

# a site of its own, beside Django's
own_site = admin.AdminSite(name="own")
own_site.register(HeldLock, LockAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("own/", own_site.urls)]
