"""Simulation of whole servers: real nodes, their clients, virtual time, disks and network in one process."""
