"""What will run where: pure functions from a recipe and a profile to a plan."""
