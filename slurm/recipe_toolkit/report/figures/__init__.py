"""Figures: what they show as data, drawn by Vega-Lite on the page and in PNG files."""
