# Functions for a package's systemd unit. They are put in front of its maintainer scripts.

has_systemd() { [ -d /run/systemd/system ]; }

# install_unit UNIT enabled|disabled: the state of a new unit; one that was installed before keeps its state.
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

# remove_unit UNIT remove|purge|…: a removal masks the unit, a purge deletes its state.
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
