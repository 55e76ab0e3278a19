"""Trainings that go well: nothing may be found."""
