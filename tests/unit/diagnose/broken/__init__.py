"""Trainings with one fault each."""
