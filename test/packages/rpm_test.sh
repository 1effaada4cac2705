#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rpm_test.sh BUILD_DIR SOURCE_DIR: makes the RPM packages of the build; rpmlint; what they provide and need; unpacked, the program runs.
# As root also: rpm installs all of them into an empty root and removes them again. Exit code 77: there is no rpmbuild.
set -euo pipefail
build=$1 source=$2
command -v rpmbuild >/dev/null || { echo "SKIPPED: no rpmbuild (Debian: rpm)" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
has() { grep "$@" >/dev/null; }  # not grep -q: it would leave early, and break the pipe of who still writes
fail() { echo "FAILED: $*" && exit 1; }
version=$(sed -n 's/^project(peerlane VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
installed_rpm() { rpm --root "$work/root" --dbpath /var/lib/rpm "$@" 2>"$work/warnings" || { cat "$work/warnings" && return 1; }; }
ask() { rpm -qp "$2" "$work/rpms/$1-$version"-*.rpm; }

"$source/scripts/rpms.sh" --out "$work/rpms" "$(basename "$build")"
if command -v rpmlint >/dev/null; then
  rpmlint -r "$source/packaging/rpm/rpmlintrc" "$source/packaging/rpm/peerlane.spec" "$work"/rpms/*.rpm >"$work/log" || { cat "$work/log"; fail "rpmlint"; }
  grep -q ' 0 errors, 0 warnings' "$work/log" || { cat "$work/log"; fail "rpmlint has something to say"; }
else
  echo "NOT CHECKED: rpmlint (not installed: apt-get install rpmlint)"
fi

ask peerlane-gdrapi --provides | has '^libgdrapi\.so\.2()' || fail "RPM does not know whose libgdrapi.so.2 is"
! ask peerlane --provides | grep libcuda || fail "the simulated GPU's library passes for the driver's"
! ask peerlane --requires | grep -E 'libmpi|libcuda|python' || fail "the program insists on what it can do without"
for package in peerlane peerlane-gdrapi peerlane-libs peerlane-devel peerlane-compat peerlane-mpi; do
  ! ask "$package" --requires | grep gdrdrv || fail "$package needs the module"
done

mkdir "$work/root"
if [ "$(id -u)" -eq 0 ]; then
  # Scripts would look for ldconfig and dkms in there; dependencies are the C library and each other.
  installed_rpm --initdb
  installed_rpm --install --nodeps --noscripts "$work"/rpms/*.rpm
  unset LD_LIBRARY_PATH
  "$work/root/usr/bin/peerlane" --version | has "^peerlane $version" || fail "peerlane --version"
  "$work/root/usr/bin/gdrcopy_sanity" -h | has -- '--list' || fail "gdrcopy_sanity -h"
  installed_rpm --verify --all --nodeps || fail "rpm --verify"
  installed_rpm --query --all --queryformat '%{NAME}\n' | xargs rpm --root "$work/root" --dbpath /var/lib/rpm --erase --nodeps --noscripts
  left=$(find "$work/root" ! -type d ! -path '*/var/lib/rpm/*')
  [ -z "$left" ] || fail "left after removal: $left"
fi
echo "rpm packages: $(find "$work/rpms" -name '*.rpm' | wc -l) made, checked and used"
