"""``recipe completion``: click's completion, with scripts that put no space after a folder."""

from __future__ import annotations

from typing import ClassVar

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete, add_completion_class

_BASH = """\
# Completion of `recipe` for bash 4.4 or later.
%(complete_func)s() {
    local IFS= line
    COMPREPLY=()
    while read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*)
                [[ $line == */ ]] && compopt -o nospace
                printf -v line %%q "${line#plain,}"
                COMPREPLY+=("$line") ;;
        esac
    done < <(IFS=' '; COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
             %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s
# Completion of `recipe` for zsh: evaluated, or as the file _recipe of a folder of $fpath.
%(complete_func)s() {
    local type value help
    local -a described names folders
    while read -r type && read -r value && read -r help; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files ;;
            plain)
                if [[ $help != _ ]]; then described+=("$value:$help")
                elif [[ $value == */ ]]; then folders+=("$value")
                else names+=("$value")
                fi ;;
        esac
    done < <(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
             %(complete_var)s=zsh_complete "${words[1]}" 2>/dev/null)
    (( $#described )) && _describe -V '' described -U
    (( $#names )) && compadd -U -V names -a names
    (( $#folders )) && compadd -U -S '' -V folders -a folders
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
# Completion of `recipe` for fish.
function %(complete_func)s
    for line in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \\
                 COMP_CWORD=(commandline -t) %(prog_name)s 2>/dev/null)
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class Bash(BashComplete):
    """Without click's start of a bash to see how old it is."""

    source_template: ClassVar[str] = _BASH

    def source(self) -> str:
        """The script."""
        return ShellComplete.source(self)


class Zsh(ZshComplete):
    """With folders that can be gone on from."""

    source_template: ClassVar[str] = _ZSH


class Fish(FishComplete):
    """With the whole of a help text that holds a comma."""

    source_template: ClassVar[str] = _FISH


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def register() -> None:
    """Let click answer with these scripts."""
    for name, cls in SHELLS.items():
        add_completion_class(cls, name)


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion_command(shell: str) -> int:
    """Print the script that teaches SHELL to complete verbs, options, runs, profiles and files.

    \b
    bash: recipe completion bash > ~/.local/share/bash-completion/completions/recipe
    zsh:  recipe completion zsh > DIR/_recipe          (DIR: a folder of your $fpath)
    fish: recipe completion fish > ~/.config/fish/completions/recipe.fish
    """
    group = click.get_current_context().find_root().command
    script = SHELLS[shell](group, {}, "recipe", "_RECIPE_COMPLETE").source()
    click.echo(script, nl=False)
    return 0
