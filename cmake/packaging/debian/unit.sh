# What each package does with its systemd unit: put in front of its maintainer scripts.

has_systemd() { [ -d /run/systemd/system ]; }

# install_unit UNIT enabled|disabled: what it is when it is new; else it stays as it was.
install_unit() {
  if [ -x /usr/bin/deb-systemd-helper ]; then
    deb-systemd-helper unmask "$1" >/dev/null || true
    if { [ "$2" = enabled ] || deb-systemd-helper debian-installed "$1"; } &&
      deb-systemd-helper --quiet was-enabled "$1"; then
      deb-systemd-helper enable "$1" >/dev/null || true
    else
      deb-systemd-helper update-state "$1" >/dev/null || true
    fi
  fi
  if has_systemd; then
    systemctl --system daemon-reload >/dev/null || true
  fi
}

# stop_unit UNIT
stop_unit() {
  if has_systemd; then
    systemctl stop "$1" >/dev/null || true
  fi
}

# remove_unit UNIT remove|purge|…: masked by a removal, forgotten by a purge.
remove_unit() {
  if has_systemd; then
    systemctl --system daemon-reload >/dev/null || true
  fi
  if [ -x /usr/bin/deb-systemd-helper ]; then
    case $2 in
      remove) deb-systemd-helper mask "$1" >/dev/null || true ;;
      purge)
        deb-systemd-helper purge "$1" >/dev/null || true
        deb-systemd-helper unmask "$1" >/dev/null || true
        ;;
    esac
  fi
}
