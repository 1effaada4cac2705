# SPDX-License-Identifier: Apache-2.0
"""Plugins for other programs (vLLM, LMCache, SGLang, fastsafetensors). That program's own configuration names the module to load."""

__all__ = []
