"""The preflight: what to ask of nodes, what their answers say, and what that means. Pure; build, parse, evaluate."""
