# shellcheck disable=SC1091,SC2016 # what is sourced is elsewhere, what is quoted is meant as it stands
set -euo pipefail

dry_run=
case "${1-}" in
  --dry_run) dry_run=1 ;;
  '') ;;
  *)
    echo "vortaro: There is no argument '$1'. Valid: '--dry_run'." >&2
    exit 2
    ;;
esac

need() { # a tool, and where it is found
  if [ -z "$dry_run" ] && ! command -v "$1" > /dev/null; then
    echo "vortaro: There is no '$1' on this machine: $2, or see with --dry_run what would be done." >&2
    exit 2
  fi
}

say() { # a command, as it can be pasted
  printf '+'
  printf ' %q' "$@"
  printf '\n'
}

run() {
  say "$@"
  if [ -z "$dry_run" ]; then
    "$@"
  fi
}
