#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup_test.sh SOURCE_DIR: a checkout that cannot be written, or whose build/ another user's make left behind, is refused before
# anything is downloaded, with the command that mends it.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
checkout="$work/a place"
mkdir -p "$checkout/scripts"
cp "$source/scripts/setup.sh" "$checkout/scripts/"
chmod 755 "$work"

# For root every folder can be written: it takes the place of an ordinary user.
ordinary=()
[ "$(id -u)" -ne 0 ] || ordinary=(setpriv --reuid 65534 --regid 65534 --clear-groups)

refuses() {  # WORDS...: that its last lines must have
  local text word
  if text=$("${ordinary[@]}" bash "$checkout/scripts/setup.sh" 2>&1); then fail "nothing was refused: $text"; fi
  for word in "$@"; do
    case "$text" in *"$word"*) ;; *) fail "no '$word' in: $text" ;; esac
  done
  case "$text" in *fetching* | *installing*) fail "something was done first: $text" ;; esac
}

chmod 555 "$checkout"
refuses "may not write $checkout (" "cp -r '$checkout' ~/"
# What root's make leaves in the checkout of somebody else.
chmod 777 "$checkout"
mkdir -p "$checkout/build/release"
touch "$checkout/build/release/CMakeCache.txt"
chmod 777 "$checkout/build"
chmod 444 "$checkout/build/release/CMakeCache.txt"
refuses "may not write $checkout/build/release/CMakeCache.txt" "rm -rf '$checkout/build'" "chown -R"
[ "$(find "$checkout" -type f | wc -l)" -eq 2 ] || fail "something was made: $(find "$checkout" -type f)"

# Packages are missing: one line to paste, for those who have sudo and those who have not.
mkdir "$work/bin"
chmod -R u+w "$checkout" && rm -rf "$checkout/build"
printf '#!/bin/sh\nexit 1\n' | tee "$work/bin/dpkg-query" >"$work/bin/apt-get"
chmod 755 "$work/bin" "$work/bin"/*
PATH="$work/bin:$PATH"
command -v sudo >/dev/null || refuses "setup: as root, run: apt-get update && apt-get install -y --no-install-recommends "
printf '#!/bin/sh\n' >"$work/bin/sudo" && chmod 755 "$work/bin/sudo"
refuses "setup: run: sudo apt-get update && sudo apt-get install -y --no-install-recommends "

# Two targets at once, as MAKEFLAGS=-j8 asks: they would share build/, and apt's lock.
chmod 755 "$checkout"
cp "$source/Makefile" "$checkout/"
for script in setup build test; do
  printf '#!/bin/sh\nmkdir "%s/busy" || exit 1\nsleep 0.2\nrmdir "%s/busy"\n' "$work" "$work" >"$checkout/scripts/$script.sh"
  chmod +x "$checkout/scripts/$script.sh"
done
make -j8 -C "$checkout" --no-print-directory build test || fail "targets overlap"

# `make test` as root: what tests need is installed beside the build of the programs, and is there before tests are built.
mkdir -p "$work/root/bin"
for program in id ctest python3; do printf '#!/bin/sh\necho 0\n' >"$work/root/bin/$program"; done
cat >"$checkout/scripts/setup.sh" <<'END'
#!/bin/sh
for _ in $(seq 600); do [ -e build/programs ] && break; sleep 0.1; done
[ -e build/programs ] || exit 1
echo "installed what tests need"
exit "$(cat setup-code)"
END
cat >"$checkout/scripts/build.sh" <<'END'
#!/bin/sh
case "$*" in
  release) mkdir -p build/release && touch build/programs ;;
  "release --tests") grep -q "installed what tests need" build/setup-tests.log && [ -e build/setup-installed ] && touch build/tests ;;
esac
END
cp "$source/scripts/test.sh" "$checkout/scripts/"
chmod 755 "$work/root/bin"/* "$checkout/scripts"/*.sh
echo 0 >"$checkout/setup-code"
text=$(PATH="$work/root/bin:$PATH" timeout 60 "$checkout/scripts/test.sh" --setup release 2>&1) || fail "make test as root: $text"
[ -e "$checkout/build/tests" ] || fail "the tests were not built behind the setup: $text"
case "$text" in *"installed what tests need"*) ;; *) fail "nobody says what was installed: $text" ;; esac
rm -r "$checkout/build"
echo 1 >"$checkout/setup-code"
if text=$(PATH="$work/root/bin:$PATH" timeout 60 "$checkout/scripts/test.sh" --setup release 2>&1); then fail "a setup that failed: $text"; fi
case "$text" in *"installed what tests need"*"could not be installed"*) ;; *) fail "nobody says what failed: $text" ;; esac
[ ! -e "$checkout/build/tests" ] || fail "tests were built without what they need"

# The name of a package that the lists tell, in a language in which apt-cache says "Hängt ab von".
cat >"$work/bin/apt-cache" <<'END'
#!/bin/sh
[ "$LC_ALL" = C ] && word=Depends || word="Hängt ab von"
printf 'linux-image-virtual\n  %s: linux-image-6.8.0-1-generic\n' "$word"
END
chmod +x "$work/bin/apt-cache"
eval "$(grep '^extra_modules=' "$source/scripts/setup.sh")"
# shellcheck disable=SC2154 # the line above sets it
found=$(export PATH="$work/bin:$PATH" LC_ALL=de_DE.UTF-8 && eval "echo $extra_modules")
[ "$found" = linux-modules-extra-6.8.0-1-generic ] || fail "in German the package is '$found'"
echo "refused, with what to do next"
