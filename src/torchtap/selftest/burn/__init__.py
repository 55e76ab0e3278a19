"""The level burn, on the side of the self-test: start the load, watch it every second, keep what was seen.

The load itself is a step of the test process (`child/burn.py`). What was seen is judged by `checks/burn.py`.
"""
