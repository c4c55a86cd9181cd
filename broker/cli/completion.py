"""`broker completion`: a script for bash, zsh or fish, made from the parsers themselves.

Verbs and options are written into the script. Names of profiles, runs and the like are asked for when they are needed,
with `broker completion --names profiles`, because they change.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

from broker import exit_codes
from broker.cli.main import TAKE_COMMAND, VERBS
from broker.cli.parser import Parser
from broker.errors import BrokerError, UsageError

SUMMARY = "print a completion script for bash, zsh or fish"
EXAMPLES = """\
eval "$(broker completion bash)"            # in ~/.bashrc
eval "$(broker completion zsh)"             # in ~/.zshrc, after compinit
broker completion fish > ~/.config/fish/completions/broker.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker completion` takes."""
    parser.add_argument("shell", nargs="?", choices=["bash", "zsh", "fish"], help="whose script to print")
    parser.add_argument("--names", choices=KINDS, help="print these names, one a line")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.names:
        for name in _names(args.names):
            print(name)
        return exit_codes.OK
    if args.shell is None:
        raise UsageError("name a shell: bash, zsh or fish")
    options = {verb: options_of(verb) for verb in VERBS}
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](options), end="")
    return exit_codes.OK


KINDS = ("profiles", "runs", "kept", "tasks", "questions", "agents", "panels")
# Verbs whose own words are names, and options that take one, with their kind.
_TAKE_NAMES = {
    **dict.fromkeys(("events", "report", "replay", "export", "plan"), "runs"), **dict.fromkeys(("diff", "land", "discard", "judge"), "kept"),
}  # fmt: skip
_NAMED = {"--profile": "profiles", "--parent": "profiles", "--panel": "panels", "--change": "kept", "--run": "runs", "--agent": "agents"}
Option = tuple[tuple[str, ...], str, tuple[str, ...], bool]  # its spellings, help, choices, takes a value


def options_of(verb: str) -> tuple[Option, ...]:
    """Return the options of a verb, those of its own sub-verbs included."""
    module = import_module(VERBS[verb][1])
    parser = Parser(prog=f"broker {verb}")
    module.add_arguments(parser)
    return tuple(dict.fromkeys(_options(parser)))


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _options(child)
        elif action.option_strings and action.help is not argparse.SUPPRESS:
            choices = tuple(str(choice) for choice in action.choices or getattr(action, "words", None) or ())
            yield tuple(action.option_strings), action.help or "", choices, action.nargs != 0


_WORDS = {
    "tasks": ("kill",), "approvals": ("list", "show", "approve", "deny", "watch"), "plan": ("show", "waive"), "judge": ("calibrate",),
}  # fmt: skip


def _sub_words(verb: str) -> tuple[str, ...]:
    """Return the fixed words that can follow a verb."""
    if verb == "events":
        from broker.cli.events_verify import WORDS

        return ("show", *WORDS)
    if verb in _WORDS:
        return _WORDS[verb]
    parser = Parser(prog=f"broker {verb}")
    import_module(VERBS[verb][1]).add_arguments(parser)
    words: list[str] = []
    for action in parser._actions:
        if not action.option_strings and action.choices is not None:
            words += [str(choice) for choice in action.choices]
    return tuple(words)


def _names(kind: str) -> list[str]:
    """Return the names, or nothing: a broken profile must not print into somebody's prompt."""
    try:
        match kind:
            case "runs":
                from broker.record.run_files import list_runs, state_dir

                return ["last", *(path.stem for path in list_runs(state_dir()))]
            case "kept":
                from broker.enforce.layer import layers_base, list_layers
                from broker.record.run_files import state_dir

                return ["last", *(layer.run for layer in list_layers(layers_base(state_dir())))]
            case "tasks":
                from broker.task.watching import joined

                with joined() as runs:
                    return [one.id_of(row["task"]) for one in runs.values() for row in one.below() if row["state"] != "ended"]
            case "questions":
                from broker.task.watching import joined, questions

                with joined() as runs:
                    return [f"{one.run}.{row['approval']}" for one in runs.values() for row in (questions(one) or {}).get("waiting", ())]
            case "agents":
                from broker.agents.adapter import known_agents

                return list(known_agents())
            case "panels":
                from broker.panel.definition import PanelNotFound, load_panel

                try:
                    load_panel("-")  # no panel's name; the refusal says which there are
                except PanelNotFound as error:
                    return list(error.known)
                return []
            case _:
                from broker.profiles.load import BrokenProfile, list_profiles

                return [each.name for each in list_profiles() if not isinstance(each, BrokenProfile)]
    except (BrokerError, ImportError, OSError):
        return []


def _flags(options: tuple[Option, ...]) -> str:
    return " ".join(spelling for spellings, *_ in options for spelling in spellings)


_BEHIND = {
    "tasks:kill": "tasks", "approvals:show|approvals:approve|approvals:deny": "questions", "judge:calibrate": "panels",
    "profile:show|profile:diff|profile:score": "profiles", "profile:suggest": "runs",
}  # fmt: skip


def _asked_for(kind: str) -> str:
    return f"$(broker completion --names {kind} 2>/dev/null)"


def _bash(options: dict[str, tuple[Option, ...]]) -> str:
    cases = []
    for verb, known in options.items():
        words = " ".join(_sub_words(verb))
        cases.append(f"    {verb}) flags={_quote(_flags(known))} words={_quote(words)} ;;")
    choices = [
        f'    {verb}:{spelling}) COMPREPLY=($(compgen -W {_quote(" ".join(values))} -- "$cur")); return ;;'
        for verb, known in options.items()
        for spellings, _, values, _ in known
        if values
        for spelling in spellings
    ]
    choices += [
        f'    *:{spelling}) COMPREPLY=($(compgen -W "{_asked_for(kind)}" -- "$cur")); return ;;' for spelling, kind in _NAMED.items()
    ]
    valued = [
        f"{verb}:{spelling}"
        for verb in sorted(TAKE_COMMAND)
        for spellings, _, _, takes in options[verb]
        if takes
        for spelling in spellings
    ]
    lines = [
        "# bash completion for broker",
        "_broker() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}"',
        "  local flags= words= i word",
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W {_quote(" ".join(VERBS) + " --help --version")} -- "$cur")); return',
        "  fi",
        '  case "$verb" in',
        *cases,
        "    *) return ;;",
        "  esac",
        f'  case "$verb" in {"|".join(sorted(TAKE_COMMAND))})',
        "    # Behind the command's own name, complete as that command would.",
        "    for ((i = 2; i < COMP_CWORD; i++)); do",
        '      word="${COMP_WORDS[i]}"',
        '      if [ "$word" = -- ]; then _broker_command $((i + 1)); return; fi',
        '      case "$word" in -*) case "$verb:$word" in',
        f"        {'|'.join(valued) or 'none'}) ((i++)) ;; esac ;;",
        "      *) _broker_command $i; return ;; esac",
        "    done ;;",
        "  esac",
        '  case "$verb:$prev" in',
        *choices,
        f'    *:on-panel) COMPREPLY=($(compgen -W "{_asked_for("panels")}" -- "$cur")); return ;;',
        f"    {'|'.join(valued) or 'none'}) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;",
        "  esac",
        '  case "$cur" in',
        '    -*) COMPREPLY=($(compgen -W "$flags" -- "$cur")) ;;',
        "    *)",
        '      case "$verb" in',
        *(f'      {verb}) words="$words {_asked_for(kind)}" ;;' for verb, kind in _TAKE_NAMES.items()),
        "      esac",
        '      if [ "$COMP_CWORD" -gt 2 ]; then case "$verb:${COMP_WORDS[2]}" in',
        *(f"      {words}) words={_asked_for(kind)} ;;" for words, kind in _BEHIND.items()),
        "      esac; fi",
        '      COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "      if [ ${#COMPREPLY[@]} -eq 0 ]; then",
        f'        case "$verb" in {"|".join(sorted(TAKE_COMMAND))}) COMPREPLY=($(compgen -c -- "$cur")) ;;',
        '        *) COMPREPLY=($(compgen -f -- "$cur")) ;; esac',
        "      fi ;;",
        "  esac",
        "}",
        "_broker_command() {",
        "  if declare -F _command_offset >/dev/null; then _command_offset $1",
        '  elif [ "$COMP_CWORD" -eq "$1" ]; then COMPREPLY=($(compgen -c -- "$cur"))',
        '  else COMPREPLY=($(compgen -f -- "$cur")); fi',
        "}",
        "complete -F _broker broker",
    ]
    return "\n".join(lines) + "\n"


def _zsh(options: dict[str, tuple[Option, ...]]) -> str:
    verbs = "\n".join(f"    {_quote(f'{verb}:{VERBS[verb][2]}')}" for verb in VERBS)
    cases = []
    for verb, known in options.items():
        specs = [_zsh_spec(spelling, option) for option in known for spelling in option[0]]
        if verb in TAKE_COMMAND:
            specs.append("'*::command:_normal'")
        elif verb in _TAKE_NAMES:
            fixed = " ".join(_sub_words(verb))
            specs.append(f'"*:run:({fixed} {_asked_for(_TAKE_NAMES[verb])})"')
        elif verb == "approvals":
            specs += [f"'1:word:({' '.join(_sub_words(verb))})'", f'"*:question:({_asked_for("questions")})"']
        elif verb == "tasks":
            specs += ["'1:word:(kill)'", f'"*:task:({_asked_for("tasks")})"']
        elif words := _sub_words(verb):
            specs += [_quote(f"1:word:({' '.join(words)})"), "'*:file:_files'"]
        else:
            specs.append("'*:file:_files'")
        cases.append(f"    {verb}) _arguments -A '-*' {' '.join(specs)} ;;")
    return "\n".join([
        "#compdef broker",
        "_broker() {",
        "  local -a verbs",
        "  verbs=(",
        verbs,
        "  )",
        "  if (( CURRENT == 2 )); then _describe verb verbs; return; fi",
        "  shift words; (( CURRENT-- ))",
        '  case "$words[1]" in',
        *cases,
        "  esac",
        "}",
        'if [ "$funcstack[1]" = _broker ]; then _broker "$@"; else compdef _broker broker; fi',
        "",
    ])  # fmt: skip


def _zsh_spec(spelling: str, option: Option) -> str:
    _, text, choices, takes = option
    text = text.replace("[", "(").replace("]", ")").replace(":", ",").replace("\n", " ")
    spec = f"*{spelling}[{text}]"
    if not takes:
        return _quote(spec)
    if spelling in _NAMED and not choices:
        return _quote(f"{spec}:name:") + f'"({_asked_for(_NAMED[spelling])})"'
    return _quote(f"{spec}:value:({' '.join(choices)})" if choices else f"{spec}:value:_files")


def _fish(options: dict[str, tuple[Option, ...]]) -> str:
    lines = ["# fish completion for broker", "complete -c broker -f"]
    for verb, (_, _, summary) in VERBS.items():
        lines.append(f"complete -c broker -n __fish_use_subcommand -a {verb} -d {_fish_quote(summary)}")
    for verb, known in options.items():
        seen = f"-n '__fish_seen_subcommand_from {verb}'"
        if words := _sub_words(verb):
            lines.append(f"complete -c broker {seen} -a {_fish_quote(' '.join(words))}")
        for spellings, text, choices, takes in known:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in spellings
            )
            line = f"complete -c broker {seen} {names} -d {_fish_quote(text)}"
            if choices:
                line += f" -x -a {_fish_quote(' '.join(choices))}"
            elif kinds := [_NAMED[name] for name in spellings if name in _NAMED]:
                line += f" -x -a '{_asked_for(kinds[0])[1:]}'"
            elif takes:
                line += " -r"
            lines.append(line)
        if verb in TAKE_COMMAND:
            lines.append(f"complete -c broker {seen} -a '(__fish_complete_subcommand)'")
        if verb in _TAKE_NAMES:
            lines.append(f"complete -c broker {seen} -a '{_asked_for(_TAKE_NAMES[verb])[1:]}'")
        for phrase, kind in _BEHIND.items():
            if phrase.startswith(f"{verb}:"):
                behind = " ".join(word.partition(":")[2] for word in phrase.split("|"))
                both = f"-n '__fish_seen_subcommand_from {verb}; and __fish_seen_subcommand_from {behind}'"
                lines.append(f"complete -c broker {both} -a '{_asked_for(kind)[1:]}'")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """Quote for a POSIX shell, always with quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
