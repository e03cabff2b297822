"""
The Celery settings of this deployment: all that the package needs, and what a site changes below.

Used by processes that are told so: BILLING_JOBS_CELERY_CONFIG=celeryconfig.
"""

from __future__ import annotations

from billing_jobs.worker.settings import *  # noqa: F403 - a settings module is its names
