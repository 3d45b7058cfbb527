"""Tests of what is installed and deployed: wheels, images, units, charts and schedules."""
