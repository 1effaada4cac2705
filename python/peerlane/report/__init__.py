# SPDX-License-Identifier: Apache-2.0
"""`peerlane report`: result files (docs/results.md) as one page or as Markdown. Pure Python, standard library only.

    python3 -m peerlane.report FILE.json... [-o report.html] [--markdown]

It does not import the rest of the package `peerlane`, so it works where nothing is built.
"""
