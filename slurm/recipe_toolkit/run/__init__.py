"""What runs on the nodes: one agent each, and the lead on the first."""
