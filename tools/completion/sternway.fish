# SPDX-License-Identifier: MIT
#
# fish completion for sternway. Commands and options are asked of the command's own --help; loaded by fish from
# vendor_completions.d.
function __sternway_command
    set -l words (commandline -opc)
    test (count $words) -gt 1; and echo $words[2]
end

function __sternway_commands
    set -l words (commandline -opc)
    $words[1] --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *\([^ ].*\)/\1\t\2/p'
    printf '%s\n' --help --version
end

function __sternway_options
    set -l words (commandline -opc)
    $words[1] $words[2] --help 2>/dev/null |
        sed -n 's/^  \{1,6\}\(-[^-], \)\{0,1\}\(--[a-z0-9][a-z0-9-]*\)\[\{0,1\}\(=\{0,1\}\)[^ ]*  *\(.*\)/\2\3\t\4/p'
end

# Whether the command has that option, with a value.
function __sternway_takes
    __sternway_command >/dev/null; and __sternway_options | string match -q -- "--$argv[1]=*"
end

function __sternway_archs
    set -l words (commandline -opc)
    $words[1] info 2>/dev/null | sed -n '/^archs:/,/^[^ ]/s/^  \([a-z0-9][a-z0-9]*\)  *\(.*\)/\1\t\2/p'
end

complete -c sternway -n 'not __sternway_command >/dev/null' -f -a '(__sternway_commands)'
complete -c sternway -n '__sternway_command >/dev/null; and string match -q -- "-*" (commandline -ct)' \
    -f -a '(__sternway_options)'
complete -c sternway -n '__sternway_takes backend' -s b -l backend -x -a 'cpu cuda hip'
complete -c sternway -n '__sternway_takes arch' -s a -l arch -x -a '(__sternway_archs)'
complete -c sternway -n '__sternway_takes require' -l require -x -a '(__sternway_archs)'
complete -c sternway -n '__sternway_takes memory' -l memory -x -a 'host device buffers'
