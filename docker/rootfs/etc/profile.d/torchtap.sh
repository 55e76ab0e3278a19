# shellcheck shell=sh
# Login shells: /etc/profile sets PATH anew. Give back the container's own; read, never evaluated.
if [ -r /run/torchtap/path ]; then
    IFS= read -r PATH </run/torchtap/path
    export PATH
fi
