"""The Python interface: what `import perfsim` offers, and what the command line calls."""
