"""Held-out evaluation of policies and reward models."""
