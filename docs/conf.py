"""How Sphinx builds these pages: ``sphinx-build -W -q docs docs/_build/html``."""

from __future__ import annotations

import os

import django
from django.conf import settings

# autodoc imports the package, and its admin and models want a site around them
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django_redislock",
    ],
    USE_TZ=True,
)
django.setup()

import django_redislock  # noqa: E402

project = "django_redislock"
author = "The django_redislock developers"
project_copyright = author
version = release = django_redislock.__version__

extensions = ["sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_title = f"django_redislock {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"

copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor what a command prints

# fetches what it links to, and these pages have to be built without a network as well
if os.environ.get("DOCS_INTERSPHINX") or os.environ.get("READTHEDOCS"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "django": ("https://docs.djangoproject.com/en/stable/", "https://docs.djangoproject.com/en/stable/_objects/"),
    }
