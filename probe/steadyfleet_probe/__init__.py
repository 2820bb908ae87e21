"""The probe: runs in the user's serving image, starts its engine afresh, measures it, and reports.

`__main__` is its entry in a pod, `visit` the story of a pod, `launch` that of one engine, `measure` that of the passes.
Python 3.10 and pydantic 2.10 are enough; nothing of vLLM or torch is imported.
"""
