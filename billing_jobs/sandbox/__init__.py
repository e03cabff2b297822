"""
The other side of the wire: a payment gateway and a mail catcher that fail on demand.

Two processes of their own: `python -m billing_jobs.sandbox` and
`python -m billing_jobs.sandbox.mail`. Nothing here imports anything else of ours: a shared
mistake would hide on both sides.
"""

from __future__ import annotations
