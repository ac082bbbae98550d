"""The table of settings against the model it fills, the flags made from it and the page written from it."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from tidegate.cli.main import build_parser
from tidegate.settings.load import Overrides, load_settings
from tidegate.settings.model import Profile, Settings
from tidegate.settings.table import PROFILE_SETTINGS, SETTINGS, Kind, Setting

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end -->\n"


def default_of(setting: Setting) -> object:
    """The default in base units; None where there is none."""
    if setting in PROFILE_SETTINGS:
        return vars(Profile).get(setting.key)
    return getattr(getattr(Settings(), setting.section), setting.key)


@pytest.mark.parametrize("section", Settings.__match_args__)
def test_table_and_model_have_the_same_keys_in_the_same_order(section: str) -> None:
    fields = [name for name in type(getattr(Settings(), section)).__match_args__ if name != "profiles"]
    assert [setting.key for setting in SETTINGS if setting.section == section] == fields


def test_table_and_model_have_the_same_keys_of_a_profile() -> None:
    assert [setting.key for setting in PROFILE_SETTINGS] == list(Profile.__match_args__)


@pytest.mark.parametrize("setting", [*SETTINGS, *PROFILE_SETTINGS], ids=lambda setting: setting.name)
def test_defaults_pass_their_own_check(setting: Setting) -> None:
    default = default_of(setting)
    if default is None or default == "":
        assert setting.section == "fence" or setting.key in (
            *(
                "budget",
                "name",
                "model",
                "unit",
                "process",
                "cgroup",
                "url",
                "memory_min",
                "memory_low",
                "keys",
                "control_keys",
            ),
        )
        return
    assert setting.parse(list(default) if isinstance(default, tuple) else default) == default


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_bounds_are_inclusive_and_shown_as_people_write_them(setting: Setting) -> None:
    for bound, beyond in ((setting.low, -1), (setting.high, 1)):
        if bound is None:
            continue
        value = int(bound) if setting.kind in (Kind.INTEGER, Kind.SIZE) else bound
        assert setting.parse(value) == value
        with pytest.raises(ValueError, match=rf"^(out of range|{'below' if beyond < 0 else 'above'} the )") as caught:
            setting.parse(value + beyond)
        assert "e+" not in str(caught.value)


@pytest.mark.parametrize("command", ["up", "guard", "check-config"])
def test_every_flag_of_the_table_is_a_flag_of_the_command(command: str) -> None:
    _, commands = build_parser()
    flags = commands[command].flags()
    assert [setting.flag for setting in SETTINGS if setting.flag and setting.flag not in flags] == []
    assert len(flags) == len(set(flags))


def test_names_are_unique() -> None:
    for names in (
        [setting.name for setting in (*SETTINGS, *PROFILE_SETTINGS)],
        [setting.env for setting in SETTINGS],
        [setting.flag for setting in SETTINGS if setting.flag],
    ):
        assert len(names) == len(set(names))


#: Values of keys whose form is checked beyond their kind.
_FORMED = {"unit": "llama.service", "cgroup": "/ai", "url": "http://127.0.0.1:1", "carry_over": "/slots"}


def test_every_environment_name_sets_its_key() -> None:
    for setting in SETTINGS:
        other = {
            Kind.RATIO: "0.4",
            Kind.SIZE: "99M",
            Kind.DURATION: "7s",
            Kind.INTEGER: "77",
            Kind.WORDS: "a.service b.service",
            Kind.SWITCH: "true" if default_of(setting) is False else "false",
            Kind.TEXT: setting.choices[-1] if setting.choices else "h:1",
        }[setting.kind]
        environ = {setting.env: other}
        if setting.key == "warn":
            environ["TIDEGATE_MEMORY_CRITICAL"] = "0.9"
        if setting.key == "critical":
            environ["TIDEGATE_MEMORY_WARN"] = "0.3"
        if setting.name == "fence.high":
            environ["TIDEGATE_MEMORY_BUDGET"] = "90M"
        if setting.key in ("url", "restart"):
            environ["TIDEGATE_WORKER_PROCESS"] = "llama-server"
        environ[setting.env] = other = _FORMED.get(setting.key, other)
        settings = load_settings({}, Overrides({}), environ, default_model="m")
        assert getattr(getattr(settings, setting.section), setting.key) == setting.parse(other) != default_of(setting)


# -- docs/configuration.md -------------------------------------------------------------------------------------------


def shown_default(setting: Setting) -> str:
    default = default_of(setting)
    match default:
        case None:
            return {
                "budget": "none",
                "name": "required",
                "model": "the demo model",
                "high": "none",
                "max": "the budget and a fifteenth, and the mapped weights",
                "swap_max": "`0`",
                "oom_group": "`true`",
                "cpu_weight": "`50`",
                "memory_min": "none",
                "memory_low": "none",
                "keys": "none",
                "control_keys": "none",
            }[setting.key]
        case ():
            return "none"
        case float() if setting.kind is Kind.DURATION:
            return f'`"{default:g}s"`'
        case str():
            return f'`"{default}"`'
        case _:
            return f"`{default}`"


def shown_range(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    low = "" if setting.low is None else setting.show(setting.low)
    high = "" if setting.high is None else setting.show(setting.high)
    return f"{low} to {high}" if high else f"at least {low}" if low else ""


def rows(settings: tuple[Setting, ...], *, environment: bool) -> list[str]:
    heads = ["key", "type", "default", "range", "flag", *(["environment"] if environment else []), "meaning"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for setting in settings:
        kind = setting.kind.value.partition(", ")[0].partition(" such as")[0].removeprefix("a ")
        cells = [f"`{setting.key}`", kind, shown_default(setting), shown_range(setting)]
        cells.append(f"`{setting.flag}`" if setting.flag else "")
        if environment:
            cells.append(f"`{setting.env}`")
        lines.append("| " + " | ".join([*cells, setting.doc]) + " |")
    return lines


def tables() -> str:
    lines: list[str] = []
    for section in Settings.__match_args__:
        lines += [f"## `[{section}]`", ""]
        lines += rows(tuple(each for each in SETTINGS if each.section == section), environment=True)
        lines.append("")
    lines += ["## `[[worker.profile]]`", "", *rows(PROFILE_SETTINGS, environment=False), ""]
    return "\n".join(lines)


def test_the_page_is_the_table() -> None:
    """Run with TIDEGATE_WRITE_DOCS=1 to write it anew."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, tail = rest.partition(END)
    if os.environ.get("TIDEGATE_WRITE_DOCS"):
        PAGE.write_text(f"{head}{BEGIN}{tables()}{END}{tail}")
    else:
        assert shown == tables()


def test_the_example_of_the_page_is_right() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    settings = load_settings(tomllib.loads(example), Overrides({}), {})
    assert [(profile.name, profile.context, profile.kv_type) for profile in settings.worker.profiles] == [
        ("full", 4096, "f16"),
        ("lean", 1024, "q8_0"),
        ("small", 1024, "q8_0"),
    ]
    assert settings.memory.budget == 4_831_838_208
    assert settings.worker.profiles[1].model == settings.worker.profiles[0].model
