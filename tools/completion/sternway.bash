# SPDX-License-Identifier: MIT
#
# bash completion for sternway. Commands and options are asked of the command's own --help; loaded by bash-completion
# from share/bash-completion/completions, or by `source`.
_sternway() {
    local tool=${COMP_WORDS[0]} command=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} option
    option=${COMP_WORDS[COMP_CWORD - 1]}
    # `--backend=cpu` is three words for readline, `cuda:sm80` too
    if [[ $word == = ]]; then
        word=
    elif [[ $option == = && $COMP_CWORD -ge 2 ]]; then
        option=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        local commands
        commands=$("$tool" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *[^ ].*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$word")
        return
    fi
    case $option in
    -b | --backend) mapfile -t COMPREPLY < <(compgen -W 'cpu cuda hip' -- "$word"); return ;;
    -a | --arch | --require)
        mapfile -t COMPREPLY < <(compgen -W "$("$tool" info 2>/dev/null |
            sed -n '/^archs:/,/^[^ ]/s/^  \([a-z0-9]*\) .*/\1/p')" -- "$word")
        return
        ;;
    --memory) mapfile -t COMPREPLY < <(compgen -W 'host device buffers' -- "$word"); return ;;
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$tool" "$command" --help 2>/dev/null |
            sed -n 's/^  \{1,6\}\(-[^-], \)\{0,1\}\(--[a-z0-9][a-z0-9-]*\)\[\{0,1\}\(=\{0,1\}\).*/\2\3/p')" -- "$word")
        [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
        return
    fi
    compopt -o default 2>/dev/null # file names, directories with their slash
}
complete -F _sternway sternway
