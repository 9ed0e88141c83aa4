# Shell functions that the scripts share: interpreters and virtual environments. Sourced from the root.

locks=scripts/requirements
pythons="3.14 3.13 3.12 3.11 3.10"

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

# Debian's python3 cannot make an environment without python3-venv.
makes_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# find_python 3.10: prints an interpreter of that version, from PATH, pyenv or uv; fails if there is none.
find_python() {
    local version=$1 candidate
    for candidate in "$(command -v "python$version" || true)" \
        "${PYENV_ROOT:-${HOME-}/.pyenv}/versions/$version".*/bin/python "$(command -v python3 || true)" \
        "$(uv python find --managed-python --no-python-downloads "$version" 2>/dev/null || true)"; do
        # A pyenv shim exists for inactive versions too, so only a run shows whether it works.
        if [ -x "$candidate" ] && [ "$(version_of "$candidate")" = "$version" ] && makes_environments "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# newest_python: prints the newest interpreter of $pythons, or the one that F5_PYTHON names (a version or a path).
# If there is none, uv installs one.
newest_python() {
    local version
    for version in $pythons; do
        if [ -x "${F5_PYTHON-}" ]; then
            if [ "$(version_of "$F5_PYTHON")" = "$version" ]; then echo "$F5_PYTHON" && return; fi
        elif [ "${F5_PYTHON:-$version}" = "$version" ] && find_python "$version"; then
            return
        fi
    done
    version=${F5_PYTHON:-3.13}
    [[ " $pythons " = *" $version "* ]] && command -v uv > /dev/null || return 1
    say "found no Python with venv: uv installs $version"
    uv python install --quiet "$version" >&2 && find_python "$version"
}

# Ends the script with one line that names the packages to install.
no_python() {
    [ -z "${F5_PYTHON-}" ] || die "F5_PYTHON is $F5_PYTHON, which does not exist or is none of $pythons"
    die "a Python of 3.10 to 3.14 with venv is needed. Debian, Ubuntu: apt install python3 python3-venv;" \
        "Fedora: dnf install python3; macOS: brew install python; or uv, which is used if it is on PATH"
}

# name_of PYTHON: py313, the name of environments of this version.
name_of() {
    local version
    version=$(version_of "$1")
    echo "py${version/./}"
}

# stamp_of PYTHON LOCK...: prints the version and a hash of everything that an installation depends on.
stamp_of() {
    local python=$1
    shift
    "$python" --version
    (cd $locks && cat "${@/%/.txt}" ../lib.sh ../../pyproject.toml | sha256sum)
}

# ensure_env DIR PYTHON LOCK...: a virtual environment with those locks and, unless bare=true, this checkout installed.
# A stamp makes the second call instant.
ensure_env() {
    local dir=$1 python=$2 stamp
    shift 2
    stamp=$(stamp_of "$python" "$@")
    [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && [ -x "$dir/bin/python" ] && return
    say "installing into $dir ($("$python" --version)): $*"
    [ "$(version_of "$dir/bin/python")" = "$(version_of "$python")" ] || "$python" -m venv --clear "$dir"
    rm -f "$dir"/.stamp*
    install_locks "$dir" "$@"
    [ "${bare-}" = true ] || install "$dir" --no-deps --editable .
    echo "$stamp" > "$dir/.stamp"
}

# add_to DIR LOCK...: installs further locks into an environment of ensure_env.
add_to() {
    local dir=$1 stamp
    shift
    stamp=$(stamp_of "$dir/bin/python" "$@")
    [ "$(cat "$dir/.stamp-$1" 2>/dev/null)" = "$stamp" ] && return
    say "installing into $dir: $*"
    install_locks "$dir" "$@"
    echo "$stamp" > "$dir/.stamp-$1"
}

# install_locks DIR LOCK...: installs torch first, if a lock names it. Locks with hashes are installed separately,
# because pip would otherwise require a hash of every package.
install_locks() {
    local dir=$1 lock arguments=()
    shift
    for lock; do
        if [ "$lock" = torch ]; then
            install_torch "$dir"
        elif grep -q -e --hash= $locks/$lock.txt; then
            install "$dir" --no-deps -r $locks/$lock.txt
        else
            arguments+=(-r "$locks/$lock.txt")
        fi
    done
    [ ${#arguments[@]} = 0 ] || install "$dir" --no-deps "${arguments[@]}"
}

# install_torch DIR: a build for CPUs, if the index of such builds answers. PyPI's for Linux on x86 brings 3.4 GB of
# CUDA, which no test calls.
cpu_builds=https://download.pytorch.org/whl/cpu
install_torch() {
    local builds=()
    answers "$1" $cpu_builds/torch/ && builds=(--extra-index-url $cpu_builds)
    install "$1" ${builds[@]+"${builds[@]}"} -r $locks/torch.txt -c $locks/device.txt -c $locks/export.txt
}

# answers DIR URL: true if the page answers within five seconds.
answers() {
    "$1/bin/python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$2" 2> /dev/null
}

# The exporter's environment, .venv, with upstream's packages.
ensure_exporter() { ensure_env .venv "$1" torch device dev export upstream; }

# Pure Python without a wheel. For another package without a wheel pip fails, and does not compile for an hour.
sdists=docopt,antlr4-python3-runtime,encodec

# Python compiles modules at their first import. That is a small part of packages such as torch, and pip would compile all.
unset PYTHONDONTWRITEBYTECODE

# install DIR PIP-ARGUMENTS...: pip's own progress on a terminal, only its errors in a log.
install() {
    local dir=$1 options=(--disable-pip-version-check --no-input --only-binary :all: --no-binary $sdists --no-compile)
    shift
    [ -t 1 ] || options+=(--quiet)
    "$dir/bin/python" -m pip install "${options[@]}" "$@"
}
