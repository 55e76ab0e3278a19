"""The test process: everything that may crash, hang or abort happens here, step by step.

`steps.py` is the table of steps. `running.py` runs them: `probe.py` starts it as a process of its own. The other
modules hold the steps, one subject each, and are imported when their first step runs. torch is imported here and
nowhere else in the self-test.

A step is a function that computes and returns plain values; it never judges.
"""
