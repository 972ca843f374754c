"""Results for people: a table and a page."""
