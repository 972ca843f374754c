"""``recipe new``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.starter.questions import QUESTIONS, Question, Site

if TYPE_CHECKING:
    from recipe_toolkit.cluster import Cluster

PROFILES = Path("recipes/clusters")


def _answers_as_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for question in reversed(QUESTIONS):
        choices = question.choices(Site())
        command = click.option(
            question.flag,
            question.key,
            metavar="|".join(choices) or question.metavar,
            shell_complete=completing.one_of(choices) if choices else None,
            help=f"{question.ask}.",
        )(command)
    return command


@click.command("new")
@click.argument("file", required=False, type=click.Path(path_type=Path), shell_complete=completing.recipe_files)
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: presume what no option answers.")
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="Check against this profile, instead of --profile (default: $RECIPE_CLUSTER).",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@_answers_as_options
def new_command(file: Path | None, yes: bool, cluster: str | None, force: bool, **options: str | None) -> int:
    """Write a recipe to FILE, and a cluster profile to recipes/clusters/NAME.yaml if one is wanted.

    Asks on a terminal; each option answers one question. Without a terminal nothing is asked: options, or --yes.
    What is written is valid; prints the paths. FILE is NAME.yaml if not given, in recipes/ where that is.
    """
    given = {key: text for key, text in options.items() if text is not None}
    if cluster and "profile" in given:
        raise click.UsageError("--cluster is a profile that is there, --profile one to write: give one of them")
    if file is not None:
        _refuse_existing(file, force)
    if "profile" not in given:
        cluster = cluster or os.environ.get("RECIPE_CLUSTER")
    used = _used_profile(cluster)
    answers = _Dialogue(given, used, ask=not yes and sys.stdin.isatty(), presume=yes).run()
    file = file or Path("recipes" if Path("recipes").is_dir() or answers["profile"] else "", f"{answers['name']}.yaml")
    profile = PROFILES / f"{answers['profile']}.yaml" if answers["profile"] else None
    for path in filter(None, (profile, file)):
        _refuse_existing(path, force)
    use = answers["profile"] or cluster
    words = shlex.join([str(file), *(["-c", use] if use else [])])
    _write(file, profile, answers, words)
    click.echo(
        f"next:\n  recipe validate {words}\n  recipe plan {words}\n"
        f"  recipe submit {words}{'' if use else ' -c PROFILE'} --follow",
        err=True,
    )
    return 0


def _used_profile(name: str | None) -> Cluster | None:
    if name is None:
        return None
    from recipe_toolkit.cluster_loader import load_cluster

    return load_cluster(name).cluster


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and (path.is_dir() or not force):
        hint = "name another file" if path.is_dir() else "name another file, or replace it with --force"
        raise RecipeError(f"{path}: is there already", hint=hint)


class _Dialogue:
    """Answers from options, from a person, or presumed. An answer that makes a file wrong is told at once."""

    def __init__(self, given: Mapping[str, str], cluster: Cluster | None, *, ask: bool, presume: bool) -> None:
        self._given = _with_shape(given)
        self._cluster = cluster
        self._ask = ask
        self._presume = presume
        self._missing: list[str] = []
        self._answers: dict[str, Any] = {"profile": None} if cluster else {}
        self._site = _look_around(cluster)

    def run(self) -> dict[str, Any]:
        """All answers. Raises UsageError for what is missing or wrong."""
        asked = set()
        for question in QUESTIONS:
            if question.key in self._answers or not question.when(self._answers):
                continue
            asked.add(question.key)
            if question.key == "partition" and self._site.sbatch:
                from recipe_toolkit.submit.slurm_commands import partitions

                self._site = replace(self._site, partitions=partitions())
            self._answers[question.key] = self._one(question)
        if self._missing:
            missing = ", ".join(self._missing)
            if self._presume:
                raise click.UsageError(f"nothing can be presumed for {missing}")
            raise click.UsageError(f"no terminal to ask on; missing: {missing}; or --yes, to presume them")
        for question in QUESTIONS:
            if question.key in self._given and question.key not in asked:
                raise click.UsageError(f"{question.flag} means nothing beside the other answers")
        return self._answers

    def _one(self, question: Question) -> Any:
        default = question.default(self._answers, self._site)
        if question.key in self._given:
            try:
                return self._value(question, self._given[question.key])
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint=question.flag) from error
        if self._ask:
            choices = question.choices(self._site)
            text = f"{question.ask} ({', '.join(choices)})" if choices else question.ask
            return click.prompt(text, default=default, err=True, value_proc=lambda said: self._told(question, said))
        if not self._presume or default is None:
            self._missing.append(question.flag)
            # What depends on a profile is missing only once there is to be one.
            return None if question.key == "profile" else question.parse("/any" if default is None else default)
        try:
            return self._value(question, default)
        except ValueError as error:
            raise click.UsageError(f"what is presumed does not fit: {error}\ngive {question.flag}") from error

    def _value(self, question: Question, text: str) -> Any:
        from recipe_toolkit.starter.draft import answer

        return answer(question, text.strip(), self._answers, self._site, self._cluster)

    def _told(self, question: Question, text: str) -> Any:
        try:
            return self._value(question, text)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


def _with_shape(given: Mapping[str, str]) -> dict[str, str]:
    """Instances that are named say which shape it is."""
    apart = {"prefill", "decode"} & set(given)
    shape = {"shape": "disaggregated"} if apart else {"shape": "aggregated"} if "serve" in given else {}
    return {**shape, **given}


def _look_around(cluster: Cluster | None) -> Site:
    from recipe_toolkit import vllm_args
    from recipe_toolkit.cluster_files import known_clusters

    venv = os.environ.get("VIRTUAL_ENV")
    return Site(
        sbatch=shutil.which("sbatch") is not None,
        profiles=[name for name in known_clusters() if name != "local"],
        vllm=venv if venv and Path(venv, "bin", "vllm").exists() else None,
        models=list(cluster.models) if cluster else (),
        version=vllm_args.versions()[-1],
    )


def _write(file: Path, profile: Path | None, answers: Mapping[str, Any], words: str) -> None:
    from recipe_toolkit.editors import install_schemas, modeline
    from recipe_toolkit.rundir import write_atomic
    from recipe_toolkit.starter.texts import profile_text, recipe_text

    paths = [path for path in (file, profile) if path]
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        install_schemas(Path(os.path.commonpath([path.absolute().parent for path in paths])), renew=False)
    except OSError as error:
        raise RecipeError(f"{error.filename}: {error.strerror or error}") from error
    texts = {file: recipe_text(answers, [modeline(file, "recipe"), f"# recipe plan {words}"])}
    if profile:
        name = answers["profile"]
        said = f"# What this site adds to every recipe. Used by -c {name}, or where RECIPE_CLUSTER={name}."
        texts[profile] = profile_text(answers, [modeline(profile, "cluster"), said])
    try:
        for path, text in texts.items():
            write_atomic(path, text)
            click.echo(path)
    except OSError as error:
        raise RecipeError(f"{error.filename}: {error.strerror or error}") from error
