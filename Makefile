# Thin targets over CMake. Each installs what it needs first (tools/setup.sh says what it does) and then builds.
#   make quickstart [SEED=7]   set up, build (without GPU kernels where no GPU is), and fine-tune a small model in two acts
#   make build [CUDA=OFF]      build/hone; CUDA=ON or OFF instead of where a toolkit is
#   make parquet               build/hone that reads .parquet files too (fetches Apache Arrow, 60 MB)
#   make test                  all tests
#   make fuzz                  readers of foreign files on damaged input, under AddressSanitizer and UndefinedBehaviorSanitizer
#   make bench                 benchmarks of the ops
#   make format | lint         clang-format | clang-format check and clang-tidy
#   make dist                  dist/hone-VERSION-linux-x86_64.tar.gz
#   make op OP=rms_norm        tests and benchmark of one op
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
SEED ?= 42
JOBS ?= $(shell nproc)
CUDA ?= AUTO
WERROR ?= OFF
BUILD ?= build
CONFIGURE = cmake -S . -B $(BUILD) -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DHONE_CUDA=$(CUDA) -DHONE_WERROR=$(WERROR)
SOURCES = $(shell find src tests -name '*.h' -o -name '*.cpp' -o -name '*.cu')

FUZZERS = $(patsubst tests/fuzz/%_fuzz.cpp,hone_fuzz_%,$(wildcard tests/fuzz/*_fuzz.cpp))

.PHONY: setup setup-tests build parquet quickstart test fuzz bench format lint dist op clean

setup:
	@tools/setup.sh build

setup-tests: setup
	@tools/setup.sh test

build: setup
	@$(CONFIGURE) -DHONE_TESTS=OFF | grep 'GPU kernels'
	@cmake --build $(BUILD) --target hone -j $(JOBS)
	@echo "built $(BUILD)/hone"

parquet:
	@tools/setup.sh parquet
	@$(MAKE) build

# Where no GPU is, GPU kernels would only make the first result later.
GPU = $(wildcard /dev/nvidiactl /dev/dxg)
quickstart:
	@$(if $(GPU),,echo 'no GPU is here: the quickstart builds without GPU kernels (make build includes them)')
	@$(MAKE) build CUDA=$(if $(GPU),$(CUDA),OFF)
	@$(BUILD)/hone quickstart --output quickstart --seed $(SEED)

test: setup-tests
	@$(CONFIGURE) -DHONE_TESTS=ON >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@cd $(BUILD) && ctest --output-on-failure -j 1

fuzz: setup-tests
	@cmake -S . -B $(BUILD)-fuzz -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DHONE_TESTS=ON -DHONE_SANITIZE=ON -DHONE_CUDA=OFF -DHONE_WERROR=$(WERROR) >/dev/null
	@cmake --build $(BUILD)-fuzz --target $(FUZZERS) -j $(JOBS)
	@cd $(BUILD)-fuzz && ctest --output-on-failure -R '^fuzz'

bench: setup-tests
	@$(CONFIGURE) -DHONE_BENCH=ON >/dev/null
	@cmake --build $(BUILD) --target hone_ops_bench -j $(JOBS)
	@$(BUILD)/hone_ops_bench

op: setup-tests
	@test -n "$(OP)" || { echo "say which: make op OP=rms_norm"; exit 2; }
	@$(CONFIGURE) -DHONE_TESTS=ON -DHONE_BENCH=ON >/dev/null
	@cmake --build $(BUILD) --target hone_ops_test hone_ops_bench -j $(JOBS)
	@$(BUILD)/hone_ops_test --gtest_filter="*$(shell echo $(OP) | sed -r 's/(^|_)([a-z])/\U\2/g')*"
	@$(BUILD)/hone_ops_bench --benchmark_filter=$(OP)

format:
	@tools/setup.sh lint
	@clang-format -i $(SOURCES)

lint:
	@tools/setup.sh lint
	@clang-format --dry-run --Werror $(SOURCES)
	@tools/lint.sh $(BUILD)

dist: build
	@tools/dist.sh $(BUILD)

clean:
	rm -rf $(BUILD) dist
