# The short way to everything. `make run` and `make test` need only git, make and a package registry.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)

.PHONY: build run test lint dist clean setup
.DEFAULT_GOAL := build

setup:              ## install what is missing (as root), or name the command that does
	@scripts/setup.sh

build: setup        ## build/release/out: the peerlane program, its drop-in names and its libraries
	@cmake --preset $(PRESET) $(CMAKE_ARGS) >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
	@rm -f build-configure.log
	@cmake --build --preset $(PRESET) -j $(JOBS)

run: build          ## the main job, on the simulated GPU if no real one answers
	@$(BUILD)/out/peerlane demo

test: setup         ## everything that CI runs
	@scripts/test.sh

lint: setup         ## format, clang-tidy, layers, our own rules
	@scripts/lint.sh

dist: build         ## build/peerlane-<version>-<arch>.tar.gz
	@scripts/dist.sh $(BUILD)

clean:
	@rm -rf build
