"""A first recipe and profile from a few answers: the questions, the texts, and what is wrong with an answer."""
