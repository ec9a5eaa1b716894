# Sourced: where interpreters are. `find_version 3.12` and `find_python` print a path.

fail() {
    echo "$(basename "$0") failed: $*"
    exit 1
}

suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

# An interpreter of a version, from PATH or from pyenv. A shim on PATH may know the version and refuse it.
find_version() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1"*/bin/python; do
        if command -v "$candidate" >/dev/null 2>&1 && suits "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# The one of 3.11 to 3.13 that has its turn with this commit, of those that are there.
find_turn() {
    # shellcheck disable=SC2046  (a list of paths)
    set -- $(for version in 3.11 3.12 3.13; do find_version "$version" || true; done)
    [ $# -gt 0 ] || return 1
    turn=$(printf '%s' "${TESTS_COMMIT:-$(git rev-parse HEAD)}" | cksum | cut -d' ' -f1)
    shift $((turn % $#))
    echo "$1"
}

# As PYTHON says: a version, a path, `turn`, or nothing.
find_python() {
    case "${PYTHON:-}" in
    '') ;;
    turn) find_turn; return ;;
    3.*) find_version "$PYTHON"; return ;;
    *) suits "$PYTHON" && command -v "$PYTHON"; return ;;
    esac
    for version in 3.13 3.12 3.11; do
        find_version "$version" && return
    done
    suits python3 && command -v python3
}
