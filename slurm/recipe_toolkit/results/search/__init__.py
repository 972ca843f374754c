"""The SLO search: from the points that were measured to the next load, or to the answer. Pure."""
