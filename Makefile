# rawshard: the menu. `make help` lists what there is.
#
#   TARANTOOL=…    the Tarantool(s) to test with; default: the one on PATH and /opt/tarantool*/bin/tarantool
#   VSHARD_PATH=…  where vshard lies; default: an installed rock, /opt/vshard
#   STORAGES=…     helper, vshard or both; default: both where vshard is found
#   TESTS=…        parts of test file names; default: all
#   LIBDIR, LUADIR where `install` puts rawshard.so and the Lua files (the rockspec hands them over)

CARGO ?= cargo
CARGO_TARGET_DIR ?= target
LIBDIR ?= /usr/local/lib/tarantool
LUADIR ?= /usr/local/share/tarantool
TESTS ?=
ARGS ?=

# Tarantool loads a library by its Lua name, cargo names it otherwise. The file is replaced as a whole instead of written
# into: a running process may have the old one mapped, and a starting one must not find half of the new one.
LIBRARY = build/rawshard.so

# Whoever runs scripts that need only some Tarantool. Looked up when used: `make test` may just have installed it.
HOST = $(or $(firstword $(TARANTOOL)),$(shell command -v tarantool),$(lastword $(wildcard /opt/tarantool*/bin/tarantool)))

# What is given to make, its commands get anyway; exporting what is not given would make it empty.
export CARGO_TARGET_DIR

.PHONY: help build install test test-rust test-bench test-tarantool test-rock test-keys lint layers demo bench bench-quick bench-micro soak clean need-tarantool

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

build: ## build rawshard.so (into build/)
	$(CARGO) build --release --features module
	@mkdir -p build
	@cmp -s $(CARGO_TARGET_DIR)/release/librawshard.so $(LIBRARY) || { \
		install -m 0755 $(CARGO_TARGET_DIR)/release/librawshard.so $(LIBRARY).new && mv -f $(LIBRARY).new $(LIBRARY); }

install: build ## put rawshard.so into LIBDIR and the Lua files into LUADIR
	install -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(LUADIR)
	install -m 0755 $(LIBRARY) $(DESTDIR)$(LIBDIR)/rawshard.so
	cd lua && find . -name '*.lua' -exec install -D -m 0644 {} $(abspath $(DESTDIR)$(LUADIR))/{} \;

test: need-tarantool test-rust test-bench test-tarantool test-rock ## all tests: the core by cargo, then every Tarantool found

test-rust: ## the core alone, no Tarantool needed
	$(CARGO) test

test-bench: ## the load generator's own parts
	CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/bench $(CARGO) test --manifest-path bench/load/Cargo.toml

test-tarantool: need-tarantool build ## unit and integration tests inside Tarantool
	$(HOST) test/run.lua $(TESTS)

test-rock: need-tarantool build ## install as a rock, and call what was installed
	@scripts/test-rock.sh

test-keys: need-tarantool build ## nightly: a million sharding keys beside Tarantool's own decoder, on every host
	KEY_CASES=$(or $(KEY_CASES),1000000) FILE_TIMEOUT=7200 $(HOST) test/run.lua key_bytes

lint: layers ## formatting, clippy, layer order, luacheck where installed
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --features module -- -D warnings
	@for crate in load floor micro; do \
		echo "bench/$$crate"; \
		$(CARGO) fmt --check --manifest-path bench/$$crate/Cargo.toml && CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/bench \
			$(CARGO) clippy --quiet --all-targets --manifest-path bench/$$crate/Cargo.toml -- -D warnings || exit 1; \
	done
	@if command -v luacheck >/dev/null; then luacheck .; else echo "luacheck is not installed: skipped"; fi

layers: ## which module may use which
	@scripts/check-layers.sh

demo: need-tarantool build ## a cluster, one call across it, ten seconds of load
	$(HOST) demo/demo.lua $(ARGS)

bench: need-tarantool build ## the workloads of bench/README.md (ARGS=…)
	bench/run.sh $(ARGS)

bench-quick: need-tarantool build ## the same, a tenth of the requests
	bench/run.sh --quick $(ARGS)

bench-micro: ## instructions and allocations per operation of the core, beside the saved base (needs valgrind; ARGS=…)
	bench/micro.sh $(ARGS)

soak: need-tarantool build ## ten minutes of load while storages die (ARGS=…)
	bench/soak.sh $(ARGS)

clean: ## remove what was built
	$(CARGO) clean
	rm -rf build

need-tarantool:
	@scripts/need-tarantool.sh
