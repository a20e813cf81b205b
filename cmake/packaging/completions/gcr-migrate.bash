# shellcheck shell=bash
# Completion of gcr-migrate in bash. Options and commands are read from the program's own --help,
# so they are never outdated.

# "--option VALUE" per line; VALUE is a|b|c, a word in capitals, or missing.
_gcr_migrate_options() {
  "$@" --help 2>/dev/null |
    sed -nE 's/$/ /; s/^  (-[a-z],)?(--[a-z-]+)( ([A-Z]+|[a-z0-9]+(\|[a-z0-9]+)+)[: ].*)?.*/\2 \4/p'
}

_gcr_migrate_subcommands() {
  "$1" --help 2>/dev/null | sed -nE '/^Subcommands:/,/^$/s/^  ([a-z]+) .*/\1/p'
}

# The names in hosts.toml.
_gcr_migrate_hosts() {
  local file
  for file in "${XDG_CONFIG_HOME:-$HOME/.config}/gcr-migrate/hosts.toml" /etc/gcr-migrate/hosts.toml; do
    [[ -r $file ]] || continue
    sed -nE '/^\[/q; s/^"?([A-Za-z0-9_.-]+)"?[[:space:]]*=.*/\1/p' "$file"
    sed -nE 's/^\["?([A-Za-z0-9_.-]+)"?\].*/\1/p' "$file"
  done
}

_gcr_migrate() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]}
  local previous=${COMP_WORDS[COMP_CWORD - 1]} subcommand='' option value word words
  local -a command=("$program")
  COMPREPLY=()
  for word in $(_gcr_migrate_subcommands "$program"); do
    [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} == "$word" ]] && subcommand=$word command+=("$word")
  done
  if [[ $subcommand == run ]]; then
    ((COMP_CWORD > 2)) && mapfile -t COMPREPLY < <(compgen -c -- "$current")
    [[ $current == -* ]] && mapfile -t COMPREPLY < <(compgen -W '--' -- "$current")
    return
  fi
  words=''
  while read -r option value; do
    words+=" $option"
    [[ $option == "$previous" && -n $value ]] || continue
    case $value in
      *'|'*) mapfile -t COMPREPLY < <(compgen -W "${value//|/ }" -- "$current") ;;
      FILE | TEXT | DIR) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    esac
    return
  done < <(_gcr_migrate_options "${command[@]}")
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  elif [[ $subcommand =~ ^(journal|timeline|checkpoints|verify|prune)$ || $current == /* ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  else
    words=''
    [[ $COMP_CWORD == 1 ]] && words=$(_gcr_migrate_subcommands "$program")
    [[ $subcommand == container && $COMP_CWORD == 2 ]] && words=preflight
    mapfile -t COMPREPLY < <(compgen -W "$words local $(_gcr_migrate_hosts)" -- "$current")
  fi
}

complete -o filenames -F _gcr_migrate gcr-migrate
