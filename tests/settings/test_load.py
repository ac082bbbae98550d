"""Settings from file, environment and flags: who wins, what comes out, and that a fault is only a TidegateError."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Exit, TidegateError
from tidegate.frozen import replace
from tidegate.settings.load import Overrides, find_config, load_settings, nearest, parse_listen, read_config
from tidegate.settings.model import GatewaySettings, Profile, Settings, WorkerSettings, changes
from tidegate.settings.table import PROFILE_SETTINGS, SETTINGS, Kind, Setting

NOTHING = Overrides({})


def load(
    text: str = "", *, env: dict[str, str] | None = None, model: str = "", flags: dict[str, str] | None = None
) -> Settings:
    """Settings of a TOML ``text``."""
    return load_settings(tomllib.loads(text), Overrides(flags or {}, model), env or {}, default_model="/demo.gguf")


def test_nothing_given_is_the_defaults_and_two_profiles_of_the_demo_model() -> None:
    settings = load()
    assert replace(settings, worker=replace(settings.worker, profiles=())) == Settings()
    assert settings.worker.profiles == (
        Profile("full", "/demo.gguf", context=4096),
        Profile("lean", "/demo.gguf", context=1024, kv_type="q8_0"),
    )


def test_flag_over_environment_over_file_over_default() -> None:
    file = "[memory]\nwarn = 0.5"
    env = {"TIDEGATE_MEMORY_WARN": "0.6"}
    assert load().memory.warn == 0.82
    assert load(file).memory.warn == 0.5
    assert load(file, env=env).memory.warn == 0.6
    assert load(file, env=env, flags={"memory.warn": "0.7"}).memory.warn == 0.7


def test_units_are_bytes_and_seconds() -> None:
    settings = load('[memory]\nbudget = "450M"\nhold = "2m"\nlead = 4\n[gateway]\nhold = "1500ms"')
    assert (settings.memory.budget, settings.memory.hold, settings.memory.lead) == (450 << 20, 120.0, 4.0)
    assert settings.gateway.hold == 1.5


def test_a_profile_inherits_from_the_one_above() -> None:
    text = """
    [[worker.profile]]
    name = "a"
    model = "/m.gguf"
    context = 2048
    prompt_cache = "64M"
    extra = ["--mlock"]
    [[worker.profile]]
    name = "b"
    kv_type = "q8_0"
    [[worker.profile]]
    name = "c"
    context = 512
    extra = []
    """
    a, b, c = load(text).worker.profiles
    assert a == Profile("a", "/m.gguf", context=2048, prompt_cache=64 << 20, extra=("--mlock",))
    assert b == replace(a, name="b", kv_type="q8_0")
    assert c == replace(b, name="c", context=512, extra=())


def test_a_profile_without_a_model_gets_the_demo_model_and_the_flag_replaces_all() -> None:
    text = '[[worker.profile]]\nname = "a"\n[[worker.profile]]\nname = "b"\nmodel = "/b.gguf"'
    assert [profile.model for profile in load(text).worker.profiles] == ["/demo.gguf", "/b.gguf"]
    assert [profile.model for profile in load(text, model="/x.gguf").worker.profiles] == ["/x.gguf", "/x.gguf"]


def test_words() -> None:
    assert load('[worker]\ncommand = ["nice", "-n", "5", "llama server"]').worker.command[3] == "llama server"
    assert load(env={"TIDEGATE_WORKER_COMMAND": "nice -n 5 llama-server"}).worker.command[3] == "llama-server"


@pytest.mark.parametrize(
    ("listen", "where"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("unix:/run/x.sock", "/run/x.sock"),
        ("unix:" + "x" * 107, "x" * 107),
    ],
)
def test_listen(listen: str, where: object) -> None:
    assert parse_listen(listen) == where


@pytest.mark.parametrize(
    "listen",
    ["", ":", "8080", ":8080", "host", "host:", "host:-1", "host:65536", "host:٣", "host:8 ", "host:" + "9" * 5000,
     "unix:", "unix:" + "x" * 108, "unix:" + "ü" * 54],
    ids=lambda listen: listen[:12],
)  # fmt: skip
def test_no_listen(listen: str) -> None:
    with pytest.raises(TidegateError, match=r"^cannot use gateway\.listen = "):
        parse_listen(listen)


@pytest.mark.parametrize(
    ("flags", "text", "code"),
    [
        ({"memory.warn": "0.95"}, "", Exit.USAGE),
        ({}, "[memory]\nwarn = 0.95", Exit.CANNOT_START),
        ({"gateway.listen": "x"}, "", Exit.USAGE),
        ({}, '[gateway]\nlisten = "x"', Exit.CANNOT_START),
        ({"worker.engine": "xllamacpp"}, 'worker.command = ["x"]', Exit.USAGE),
        ({}, 'worker.carry_over = "slots"', Exit.CANNOT_START),
        # The flag is fine with what the file has: whose fault it is counts, not that there is a flag.
        ({"log.level": "debug"}, "[memory]\nrelease = 0.4\nwarn = 0.3", Exit.CANNOT_START),
    ],
)
def test_a_fault_of_two_settings_is_the_flags_when_one_is_a_flag(flags: dict[str, str], text: str, code: Exit) -> None:
    with pytest.raises(TidegateError) as caught:
        load(text, flags=flags)
    assert caught.value.exit_code is code


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"TIDEGATE_MEMORY_WRAN": "0.5"}, "did you mean $TIDEGATE_MEMORY_WARN?"),
        ({"TIDEGATE_MEMROY_WARN": "0.5"}, "did you mean $TIDEGATE_MEMORY_WARN?"),
        ({"TIDEGATE_CONFG": "x"}, "did you mean $TIDEGATE_CONFIG?"),
        ({"TIDEGATE_MEMORY_QUITE_ANOTHER": "1"}, "docs/configuration.md has the names"),
    ],
)
def test_unknown_environment(env: dict[str, str], why: str) -> None:
    with pytest.raises(TidegateError) as caught:
        load(env=env)
    assert caught.value.hint == why


@pytest.mark.parametrize(
    "name",
    ["TIDEGATE_SERVICE_HOST", "TIDEGATE_PORT_8080_TCP_ADDR", "TIDEGATE_GATEWAY_SERVICE_PORT", "TIDEGATE_GATEWAY_PORT",
     "TIDEGATE_SOMETHING_OF_MINE", "tidegate_memory_warn", "TIDE_GATE"],
)  # fmt: skip
def test_the_environment_has_names_that_are_not_ours(name: str) -> None:
    assert load(env={name: "tcp://10.0.0.1:8080"}) == load()


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        ("[memroy]", "did you mean 'memory'?"),
        ("[memory]\nwran = 1", "did you mean 'warn'?"),
        ("warn = 0.5", "it belongs into [memory]"),
        ("[memory]\nlisten = 'x'", "it belongs into [gateway]"),
        ("[worker]\ncontext = 512", "it belongs into [[worker.profile]]"),
        ("[[profile]]\nname = 'a'", "it belongs into [[worker.profile]]"),
        ("[[worker.profile]]\nname = 'a'\nkvtype = 'f16'", "did you mean 'kv_type'?"),
        ("[[worker.profile]]\nname = 'a'\nzzzz = 1", "known: name, model, context"),
        ("[zzzz]", "known: memory, worker, fence, protect, gateway, log"),
    ],
)
def test_unknown_names_are_told_where_they_belong(document: str, hint: str) -> None:
    with pytest.raises(TidegateError, match=r": no such (setting|section) ") as caught:
        load(document)
    assert caught.value.hint.startswith(hint)
    assert caught.value.exit_code is Exit.CANNOT_START


@pytest.mark.parametrize("key", ["memory.warn", "memory.budget", "memory.hold", "gateway.warn_context", "log.level"])
def test_a_number_too_long_to_be_written_is_refused_in_one_line(key: str) -> None:
    with pytest.raises(TidegateError, match=rf"^cannot use {re.escape(key)} = \.\.\.: "):
        load(f"{key} = 0x{'f' * 5000}")


def test_nearest_is_quick_with_a_page_of_text() -> None:
    assert nearest("x" * 10_000_000, ["warn"]) == ""


def test_where_the_file_is_looked_for(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "system.toml"
    monkeypatch.setattr("tidegate.settings.load.SYSTEM_CONFIG", str(system))
    assert find_config(None, {}) is None
    system.touch()
    assert find_config(None, {}) == str(system)
    assert find_config(None, {"TIDEGATE_CONFIG": "/env.toml"}) == "/env.toml"
    assert find_config("/flag.toml", {"TIDEGATE_CONFIG": "/env.toml"}) == "/flag.toml"
    monkeypatch.chdir(tmp_path)
    assert find_config("mine.toml", {}) == str(tmp_path / "mine.toml")


def test_a_file_of_another_system(tmp_path: Any) -> None:
    path = tmp_path / "tidegate.toml"
    path.write_bytes(b"\xef\xbb\xbf[memory]\r\nwarn = 0.5\r\n")
    assert read_config(str(path)) == {"memory": {"warn": 0.5}}


# -- property tests --------------------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=40), st.datetimes(), st.just(10**400),
    st.sampled_from(["450M", "10s", "q8_0", "unix:/x", "127.0.0.1:80", "full", "info"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def table_of(settings: tuple[Setting, ...]) -> st.SearchStrategy[dict[str, Any]]:
    keys = st.sampled_from([setting.key for setting in settings]) | st.text(max_size=8)
    return st.dictionaries(keys, VALUES, max_size=4)


SECTIONS = {
    section: table_of(tuple(setting for setting in SETTINGS if setting.section == section))
    for section in ("memory", "worker", "gateway", "log")
}
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **{section: tables | VALUES for section, tables in SECTIONS.items()},
        "worker": st.fixed_dictionaries({"profile": st.lists(table_of(PROFILE_SETTINGS), max_size=3) | VALUES}),
        "more": VALUES,
    },
)


@given(DOCUMENTS, st.dictionaries(st.sampled_from([setting.name for setting in SETTINGS]), st.text(), max_size=3))
def test_garbage_is_a_tidegate_error_or_settings(document: dict[str, Any], flags: dict[str, str]) -> None:
    try:
        settings = load_settings(document, Overrides(flags), {}, default_model="/m.gguf")
    except TidegateError as error:
        assert error.message.startswith("cannot use ")
        assert len(error.message) < 400
        assert "\n" not in error.message
    else:
        assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_files_are_a_tidegate_error_or_a_document(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.toml"
    path.write_bytes(data)
    try:
        document = read_config(str(path))
        load_settings(document, NOTHING, {})
    except TidegateError as error:
        assert error.message.startswith("cannot ")


def good(setting: Setting) -> st.SearchStrategy[Any]:
    """Values that a setting takes, as TOML has them."""
    low, high = setting.low, setting.high
    match setting.kind:
        case Kind.RATIO:
            return st.floats(low, high)
        case Kind.INTEGER:
            return st.integers(int(low or 0), int(high or 0))
        case Kind.SIZE:
            return st.integers(int(low or 0), int(high or 1 << 50))
        case Kind.DURATION:
            return st.floats(low, high)
        case Kind.SWITCH:
            return st.booleans()
        case Kind.WORDS if setting.section == "protect":
            return st.lists(st.from_regex(r"[A-Za-z0-9]{1,9}\.service", fullmatch=True), max_size=3)
        case Kind.WORDS:
            return st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), max_size=3)
        case Kind.TEXT if setting.choices:
            return st.sampled_from(setting.choices)
        case _:
            return {
                "listen": st.just("[::1]:80"),
                "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", fullmatch=True),
                "model": st.text(st.characters(exclude_characters="\0"), min_size=1),
                "keys": st.just("/etc/tidegate/keys"),
                "control_keys": st.just("/etc/tidegate/control-keys"),
                "carry_over": st.sampled_from(("auto", "off", "/slots")),
            }[setting.key]


#: They must stand in order, and behind the budget: tests/settings/test_fence_settings.py.
FENCES = ("high", "max")
#: They shut out profiles: tests/settings/test_attachment.py.
ATTACHING = ("unit", "process", "cgroup", "url", "restart")


def test_every_kind_of_text_has_a_strategy() -> None:
    for setting in (*SETTINGS, *PROFILE_SETTINGS):
        if setting.key not in ATTACHING:
            good(setting)


@given(st.data())
def test_right_values_are_taken_and_survive_json(data: st.DataObject) -> None:
    document: dict[str, Any] = {section: {} for section in Settings.__match_args__}
    for setting in SETTINGS:
        if setting.key not in ("warn", "critical", "release", "command", *FENCES, *ATTACHING) and data.draw(
            st.booleans()
        ):
            document[setting.section][setting.key] = data.draw(good(setting))
    profiles = data.draw(
        st.lists(
            st.fixed_dictionaries({"name": good(PROFILE_SETTINGS[0])}, optional={
                setting.key: good(setting) for setting in PROFILE_SETTINGS[1:] if "batch" not in setting.key
            }),
            unique_by=lambda profile: profile["name"],
            max_size=3,
        )
    )  # fmt: skip
    document["worker"]["profile"] = profiles
    settings = load_settings(document, NOTHING, {}, default_model="/m.gguf")
    for section in ("memory", "gateway", "log"):
        assert vars(getattr(settings, section)).items() >= document[section].items()
    assert [profile.name for profile in settings.worker.profiles[: len(profiles)]] == [p["name"] for p in profiles]
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    assert changes(settings, settings) == []


def test_changes_name_what_changed() -> None:
    before = load()
    after = load("[memory]\nwarn = 0.5\n[log]\nlevel = 'debug'")
    assert changes(before, after) == ["memory.warn: 0.82 -> 0.5", "log.level: 'info' -> 'debug'"]


def test_changes_say_when_they_take_effect_and_name_the_key_of_a_profile() -> None:
    full, lean = Profile("full", "m"), Profile("lean", "m", context=1024)
    before = Settings(worker=WorkerSettings(profiles=(full, lean)))
    after = Settings(
        worker=WorkerSettings(profiles=(replace(full, context=8192), Profile("small", "s"))),
        gateway=GatewaySettings(language="zh", warn_context=2048),
    )
    assert changes(before, after) == [
        "worker.profile: full, lean -> full, small",
        "worker.profile full.context: 4096 -> 8192 (from its next start on)",
        "gateway.warn_context: 1024 -> 2048",
        "gateway.language: 'en' -> 'zh' (after a restart)",
    ]
