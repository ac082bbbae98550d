# shellcheck shell=sh
# Sourced by the other scripts: make or refresh .venv from a lock file of requirements/.
#   make_venv NAME     installs requirements/NAME.txt and tidegate itself; does nothing when all of it is there
# Sets $root and $venv. Exits 3, with the package's name, when the system lacks something.

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv

die() {
  echo "tidegate: $1" >&2
  exit 3
}

make_venv() {
  python=${PYTHON:-python3}
  command -v "$python" >/dev/null 2>&1 || die "cannot find $python: install python3 (3.11 or newer)"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "cannot use $("$python" --version 2>&1): Python 3.11 or newer is needed"
  "$python" -c 'import ensurepip, venv' 2>/dev/null || die "cannot make $venv: install python3-venv"
  lock=$root/requirements/$1.txt
  stamp=$venv/.installed-$1
  # What was installed, from what, by which interpreter: any change makes the environment anew.
  want=$("$python" --version 2>&1; cat "$lock" "$root/pyproject.toml"; echo "$root")
  if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    return 0
  fi
  echo "tidegate: installing into $venv (once)" >&2
  "$venv/bin/python" --version 2>/dev/null | grep -qxF "$("$python" --version 2>&1)" ||
    "$python" -m venv --clear "$venv" || die "cannot make $venv"
  rm -f "$stamp"
  # A lock is whole: without --no-deps, pip asks for "httpx[http2]<1.0" (litellm) apart from the locked httpx, takes a
  # newer one for it and refuses that for want of a hash.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary=:all: \
    -r "$lock" || die "cannot install $lock: see pip's message above"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    -e "$root" || die "cannot install tidegate itself: see pip's message above"
  printf '%s\n' "$want" >"$stamp"
}
