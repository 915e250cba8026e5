#!/usr/bin/env bash
# Runs nats-server and two windlass servers, whose rooms are one. Open both addresses that are
# printed, and chat from one to the other. Ctrl-C ends all three.
#
# Needed: nats-server (the package of that name in Debian), and cargo, or the program in WINDLASS.
# Ports: NATS_PORT (4222), PORT_A (9001), PORT_B (9011); 0 picks a free one.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Debian has nats-server in a directory that is not in everyone's PATH.
PATH=$PATH:/usr/sbin
command -v nats-server >/dev/null || {
    echo "there is no nats-server: install the package nats-server" >&2
    exit 1
}
if [ -z "${WINDLASS-}" ]; then
    cargo build --release -p windlass-cli --features cluster
    WINDLASS=${CARGO_TARGET_DIR:-target}/release/windlass
fi

folder=$(mktemp -d)
children=()
end() {
    trap - EXIT
    # One that has ended already is no failure.
    [ "${#children[@]}" -eq 0 ] || kill "${children[@]}" 2>/dev/null || true
    wait || true
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 0' INT TERM

# nats-server takes -1 for a free port, and writes its address to a file when it listens.
port=${NATS_PORT:-4222}
[ "$port" != 0 ] || port=-1
nats-server -a 127.0.0.1 -p "$port" --ports_file_dir "$folder" -l "$folder/nats.log" &
nats=$!
children+=("$nats")
file=$folder/nats-server_$nats.ports
until [ -s "$file" ]; do
    kill -0 "$nats" 2>/dev/null || {
        cat "$folder/nats.log" >&2
        exit 1
    }
    sleep 0.05
done
url=$(grep -o 'nats://[0-9.:]*' "$file" | head -n 1)
echo "nats: listening on $url"

# The name is written before each line.
serve() { # name port
    "$WINDLASS" serve --listen "127.0.0.1:$2" --cluster "$url" > >(sed -u "s/^/$1: /") &
    children+=("$!")
}
serve a "${PORT_A:-9001}"
serve b "${PORT_B:-9011}"
# Whichever ends first ends the others.
wait -n "${children[@]}"
