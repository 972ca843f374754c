"""``sweep``: one recipe that stands for several, each checked and planned as a recipe of its own."""
