"""What carries plans out: the torch backend. torch is imported here only, and only when a backend is made.

A backend keeps an arena laid out as the pool is, carries every plan out in the engine's order, and proves
that each read finds what the request's own history says.
"""
