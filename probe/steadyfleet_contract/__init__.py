"""What the probe and the operator share: the report of one launch, its digests, and the wire paths.

Only the standard library, pydantic and numpy are imported here, and only what Python 3.10 and pydantic 2.10 know:
the probe runs inside the user's serving image.
"""
