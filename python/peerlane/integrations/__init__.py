# SPDX-License-Identifier: Apache-2.0
"""Peerlane inside other programs: each module is loaded by that program's own configuration."""

__all__ = []
