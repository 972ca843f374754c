"""A recipe's ``tune``: which runs measure prefill and decode alone, and which confirm what follows from them."""
