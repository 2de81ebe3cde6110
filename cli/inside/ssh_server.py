"""What runs in the job for one connection of ssh: the node's own sshd as the job's account, on its standard input.

It has a folder of its own for as long as it runs, with the one key that it lets in, its host key, and the environment
of the job, which each session gets.
"""

from __future__ import annotations

SSHD_PLACES = "/usr/sbin/sshd /usr/local/sbin/sshd /usr/bin/sshd"
SFTP_PLACES = (
    "/usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/lib/ssh/sftp-server /usr/libexec/sftp-server"
)

KEY_END = "."
"""Behind the host key; then the bytes of ssh begin."""

NO_SSHD = "gpuctl: there is no sshd that the job could start: type gpuctl ssh or ssh-config again"
NO_ACCOUNT = (
    "gpuctl: the job's account has no name, and sshd lets nobody in without: type gpuctl ssh or ssh-config again"
)
"""What is said where that was otherwise when ssh was told of the job: then it is answered without sshd."""

FIND_SSHD = f"""sshd=$(command -v sshd) || for each in {SSHD_PLACES}; do [ -x "$each" ] && sshd=$each && break; done"""

LOOK = f""": gpuctl looks for sshd
user=$(id -un 2> /dev/null) || user=
{FIND_SSHD}
[ "$(id -u)" != 0 ] || grep -q '^CapEff:.*[1-9a-f]' /proc/self/status || sshd=  # it would be none of root's here
printf '%s\\n' "$user" "$sshd"
"""
"""For /bin/sh: says the name of the job's account and where sshd is, a line each, empty where there is none."""

SCRIPT = f""": gpuctl ssh
umask 077
{FIND_SSHD}
[ -n "$sshd" ] || {{ echo "{NO_SSHD}" >&2; exit 127; }}
user=$(id -un 2> /dev/null) || {{ echo "{NO_ACCOUNT}" >&2; exit 126; }}
for each in "${{TMPDIR:-/tmp}}"/gpufleet-ssh.*.*; do  # what was killed has left its own
  pid=${{each##*/gpufleet-ssh.}} pid=${{pid%%.*}}
  case $pid in *[!0-9]* | '') continue ;; esac
  [ ! -O "$each" ] || kill -0 "$pid" 2> /dev/null || rm -rf "$each"
done
folder=$(mktemp -d "${{TMPDIR:-/tmp}}/gpufleet-ssh.$$.XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 129' HUP TERM
IFS= read -r line && printf '%s\\n' "$line" > "$folder/authorized_keys"
while IFS= read -r line && [ "$line" != {KEY_END} ]; do printf '%s\\n' "$line"; done > "$folder/host_key"
export -p > "$folder/environment"
ln -s "$PWD" "$folder/cwd"
cat > "$folder/session" << 'END'
shell=$SHELL terminal=$TERM
. "$1/environment"
export SHELL="$shell"
[ -z "$terminal" ] || export TERM="$terminal"
cd -P "$1/cwd"
[ -z "$SSH_ORIGINAL_COMMAND" ] || exec "$shell" -c "$SSH_ORIGINAL_COMMAND"
exec "$shell"
END
cat > "$folder/config" << END
HostKey $folder/host_key
AuthorizedKeysFile $folder/authorized_keys
AllowUsers $(printf %s "$user" | tr @ '?')
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
PidFile none
PrintMotd no
PrintLastLog no
LogLevel ERROR
ForceCommand /bin/sh "$folder/session" "$folder"
END
for each in {SFTP_PLACES}; do
  [ -x "$each" ] && echo "Subsystem sftp $each" >> "$folder/config" && break
done
[ "$(id -u)" != 0 ] || mkdir -p -m 755 /run/sshd
"$sshd" -i -e -f "$folder/config"
"""
"""For /bin/sh. By its standard input come the key that is let in, a line; the host key, up to KEY_END; then ssh."""


def first_bytes(public_key: str, host_key: str) -> bytes:
    """What the script reads before ssh's own bytes."""
    return f"{public_key.strip()}\n{host_key.strip()}\n{KEY_END}\n".encode()
