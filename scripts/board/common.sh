# shellcheck shell=sh
# Sourced by the recipes: what they say, and where Debian's packages come from.

here=${0%/*}
# shellcheck source=scripts/board/pins
. "$here/pins"

say() {
  echo "board: $1" >&2
}

die() {
  echo "board: $1" >&2
  exit 3
}

# need PROGRAM...: all of them, or the end with the names of the missing ones.
need() {
  missing=
  for program; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
  done
  [ -z "$missing" ] || die "cannot build it without$missing: apt-get install $(grep -v '^#' "$here/packages" | tr '\n' ' ')"
}

# mirror: the Debian mirror of this machine's own apt sources.
mirror() {
  found=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1)
  [ -n "$found" ] || found=$(awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i; exit } }' \
    /etc/apt/sources.list 2>/dev/null)
  [ -n "$found" ] || die "cannot find a Debian mirror in this machine's apt sources"
  echo "${found%/}"
}

# fetch PATH FILE SHA256: one file of the mirror, checked, through apt and so with its proxy settings.
fetch() {
  /usr/lib/apt/apt-helper -q download-file "$(mirror)/$1" "$2" "SHA256:$3" >/dev/null 2>&1
}
