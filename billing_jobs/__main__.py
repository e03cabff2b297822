"""`python -m billing_jobs` is the command `billing-jobs`."""

from __future__ import annotations

from billing_jobs.cli import main

if __name__ == "__main__":
    main()
