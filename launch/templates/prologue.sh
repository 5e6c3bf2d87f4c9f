# shellcheck disable=SC1091,SC2016 # sourced files are elsewhere; single quotes are intended
set -euo pipefail

dry_run=
case "${1-}" in
  --dry_run) dry_run=1 ;;
  '') ;;
  *)
    echo "vortaro: Unknown argument '$1'. Valid: '--dry_run'." >&2
    exit 2
    ;;
esac

need() { # arguments: a tool, and the advice to print if it is missing
  if [ -z "$dry_run" ] && ! command -v "$1" > /dev/null; then
    echo "vortaro: '$1' is not installed on this machine. $2, or print the commands with --dry_run." >&2
    exit 2
  fi
}

show_command() { # prints a command in a form that can be pasted
  printf '+'
  printf ' %q' "$@"
  printf '\n'
}

run() {
  show_command "$@"
  if [ -z "$dry_run" ]; then
    "$@"
  fi
}
