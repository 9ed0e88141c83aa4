# Shell functions that the scripts share: interpreters and virtual environments. Sourced from the root.

locks=scripts/requirements

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# find_python 3.10: prints an interpreter of that version, from PATH or from pyenv; fails where there is none.
find_python() {
    local version=$1 candidate
    for candidate in "$(command -v "python$version" || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python "$(command -v python3 || true)"; do
        # A pyenv shim exists for versions that are not active too: only running it tells.
        if [ -x "$candidate" ] && [ "$(version_of "$candidate")" = "$version" ]; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

# ensure_env DIR PYTHON LOCK...: a virtual environment with those locks and, unless bare=true, this checkout installed.
# torch comes first, if asked for. A stamp of all that it depends on makes the second call instant.
ensure_env() {
    local dir=$1 python=$2 stamp lock arguments=()
    shift 2
    stamp=$("$python" --version; cd $locks && cat "${@/%/.txt}" ../lib.sh ../../pyproject.toml | sha256sum)
    [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && [ -x "$dir/bin/python" ] && return
    say "installing into $dir ($("$python" --version)): $*"
    [ "$(version_of "$dir/bin/python")" = "$(version_of "$python")" ] || "$python" -m venv --clear "$dir"
    rm -f "$dir/.stamp"
    for lock; do
        if [ "$lock" = torch ]; then
            install "$dir" -r $locks/torch.txt -c $locks/device.txt -c $locks/export.txt
        else
            arguments+=(-r "$locks/$lock.txt")
        fi
    done
    install "$dir" --no-deps "${arguments[@]}"
    [ "${bare-}" = true ] || install "$dir" --no-deps --editable .
    echo "$stamp" > "$dir/.stamp"
}

# install DIR PIP-ARGUMENTS...: pip's own progress on a terminal, only its errors in a log.
install() {
    local dir=$1 quiet=()
    shift
    [ -t 1 ] || quiet=(--quiet)
    "$dir/bin/python" -m pip install --disable-pip-version-check --no-input "${quiet[@]}" "$@"
}
