"""Measurements of any client, in one schema, and whether they count."""
