"""A real Kubernetes cluster on one machine, for the tests and the demo: see README.md beside this file.

Public: `Cluster` (three nodes), `ControlPlane` (API server alone, with fake nodes), `images`, `engine`, `binaries`.
"""
