# The short way to everything. `make run` and `make test` need only git, make and a package registry.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)
export JOBS PRESET CMAKE_ARGS

.PHONY: build run test test-all test-sanitizers test-kernel-debug test-packages lint dist docs clean setup setup-tests help
.DEFAULT_GOAL := build
# Targets share build/ and the package manager; with -j each of them is parallel within (JOBS).
.NOTPARALLEL:

build: setup        ## build/release/out: the peerlane program, its drop-in names, its libraries and the Python package
	@scripts/build.sh $(PRESET)

run: build          ## every job once, verified, on the simulated GPU if no real one answers
	@$(BUILD)/out/peerlane demo

test: setup         ## every test of the release build; the last line counts passed, failed and skipped
	@scripts/test.sh --setup release

test-sanitizers: setup-tests  ## the same tests under AddressSanitizer + UBSan, then under ThreadSanitizer
	@scripts/test.sh asan tsan

test-all: setup     ## both, as CI runs them: each build while the tests of the one before run
	@scripts/test.sh --setup release asan tsan

test-kernel-debug: build  ## the kernel driver's tests on a kernel with KASAN and lockdep (built once, below build/)
	@test/kernel/debug_kernel.sh build/debug-kernel
	@test/kernel/debug_gate.sh $(BUILD) build/debug-kernel

lint: setup-tests         ## our own rules, layout, shellcheck, clang-tidy on changed files (ALL=1: on all)
	@scripts/lint.sh

dist: build         ## build/peerlane-<version>-linux-<arch>.tar.gz, Debian packages in build/debs, and Python wheels
	@scripts/dist.sh $(PRESET)

test-packages: build  ## as root: the packages in a fresh Debian: install, use, upgrade, replace the stock ones, DKMS, remove
	@scripts/check-packages.sh $(PRESET)

docs:               ## build/site: the documentation as a site (needs Python; fetches mkdocs once)
	@scripts/docs.sh

setup:              ## install what is missing (as root), or name the command that does
	@scripts/setup.sh

setup-tests:        ## the same, and what only tests need
	@scripts/setup.sh --tests

clean:              ## remove build/ (the private Python environment .venv stays)
	@rm -rf build

help:               ## this list
	@sed -n 's/^\([a-z-]*\):.*## */\1\t/p' Makefile
