"""Measuring routes: requests that take turns, kept one by one, and what follows from them."""
