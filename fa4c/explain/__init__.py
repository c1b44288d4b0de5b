"""`fa4c explain`: what a kernel's IR implies for each unit of an SM, where its data lie, and what each pass did to it.

All of it is computed from the operations and the target's numbers; nothing is looked up. docs/explain.md documents the JSON.
"""

from .report import explain

__all__ = ["explain"]
