"""Operators: one folder each, with its definition in plain torch beside what runs."""
