# The short way to everything. `make run` and `make test` need only git, make and a package registry.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)
export JOBS PRESET CMAKE_ARGS

.PHONY: build run test lint dist clean setup help
.DEFAULT_GOAL := build

build: setup        ## build/release/out: the peerlane program, its drop-in names and its libraries
	@scripts/build.sh $(PRESET)

run: build          ## the main job, on the simulated GPU if no real one answers
	@$(BUILD)/out/peerlane demo

test: setup         ## everything that CI runs; the last line counts passed, failed and skipped
	@scripts/test.sh

lint: setup         ## our own rules, layout, shellcheck, clang-tidy on changed files (ALL=1: on all)
	@scripts/lint.sh

dist: build         ## build/peerlane-<version>-linux-<arch>.tar.gz
	@scripts/dist.sh $(PRESET)

setup:              ## install what is missing (as root), or name the command that does
	@scripts/setup.sh

clean:              ## remove build/ (the private Python environment .venv stays)
	@rm -rf build

help:               ## this list
	@sed -n 's/^\([a-z]*\):.*## */\1\t/p' Makefile
