"""Serving: a process that answers requests to models of bundles (`rowmill serve`)."""
