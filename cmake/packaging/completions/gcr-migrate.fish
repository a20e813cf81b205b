# Completion of gcr-migrate in fish. Options and commands are read from the program's own --help,
# so they are never outdated.

function __gcr_migrate_help
    # The --help of the command typed so far: of its subcommand, if there is one.
    set -l words (commandline -opc)
    if set -q words[2]; and contains -- $words[2] (__gcr_migrate_subcommands | string replace -r '\t.*' '')
        $words[1] $words[2] --help 2>/dev/null
    else
        $words[1] --help 2>/dev/null
    end
end

function __gcr_migrate_subcommands
    set -l words (commandline -opc)
    $words[1] --help 2>/dev/null |
        string match -rg '^  ([a-z]+ +gcr-migrate [^:]*: .*)' |
        string replace -r '^([a-z]+) +gcr-migrate [^:]*: ' '$1\t'
end

# Options, or the values of the one before the cursor.
function __gcr_migrate_options
    __gcr_migrate_help | string match -rg '^  (?:-[a-z],)?(--[a-z-]+)'
end

function __gcr_migrate_values
    set -l words (commandline -opc)
    __gcr_migrate_help | string match -rg "^  $words[-1] ([a-z0-9]+(?:\|[a-z0-9]+)+)" | string split '|'
end

function __gcr_migrate_takes_value
    set -l words (commandline -opc)
    string match -q -- '--*' $words[-1]; and __gcr_migrate_help |
        string match -rq "^  (?:-[a-z],)?$words[-1] (?:[A-Z]+(?:[: ]|\$)|[a-z0-9]+\|)"
end

function __gcr_migrate_takes_file
    set -l words (commandline -opc)
    string match -q -- '--*' $words[-1]; and __gcr_migrate_help |
        string match -rq "^  $words[-1] (?:FILE|TEXT|DIR)"
end

function __gcr_migrate_hosts
    set -l folder ~/.config
    set -q XDG_CONFIG_HOME; and set folder $XDG_CONFIG_HOME
    echo local
    for file in $folder/gcr-migrate/hosts.toml /etc/gcr-migrate/hosts.toml
        test -r $file; or continue
        sed -nE '/^\[/q; s/^"?([A-Za-z0-9_.-]+)"?[[:space:]]*=.*/\1/p' $file
        sed -nE 's/^\["?([A-Za-z0-9_.-]+)"?\].*/\1/p' $file
    end
end

function __gcr_migrate_first
    test (count (commandline -opc)) = 1
end

complete -c gcr-migrate -f
complete -c gcr-migrate -n __gcr_migrate_takes_value -a '(__gcr_migrate_values)'
complete -c gcr-migrate -n __gcr_migrate_takes_file -F
complete -c gcr-migrate -n 'not __gcr_migrate_takes_value' -a '(__gcr_migrate_options)'
complete -c gcr-migrate -n 'not __gcr_migrate_takes_value; and __gcr_migrate_first' -a '(__gcr_migrate_subcommands)'
complete -c gcr-migrate -n 'not __gcr_migrate_takes_value' -a '(__gcr_migrate_hosts)'
complete -c gcr-migrate -n '__fish_seen_subcommand_from container' -a preflight
complete -c gcr-migrate -n '__fish_seen_subcommand_from journal timeline checkpoint restore checkpoints verify prune' -F
complete -c gcr-migrate -n '__fish_seen_subcommand_from run' -a '(__fish_complete_subcommand)'
