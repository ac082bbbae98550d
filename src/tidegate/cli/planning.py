"""From settings to what the guard is told of each profile: the model files are read here, once."""

from __future__ import annotations

import os
import platform

from tidegate.cli.demo_model import demo_model_path
from tidegate.engines.llama_flags import OWNED_FLAGS
from tidegate.errors import TidegateError
from tidegate.gguf import GgufModel, read_gguf
from tidegate.guard.plan import ProfileBytes
from tidegate.policy import footprint
from tidegate.settings.model import ATTACHED, Profile, Settings
from tidegate.units import format_size


def plan_profiles(settings: Settings) -> dict[str, ProfileBytes]:
    """Planned bytes of every profile, by name.

    Raises:
        TidegateError: a model cannot be read, a flag is the guard's own, the model's context is exceeded, or no
            profile fits the budget.
    """
    if settings.worker.attached:
        # Its model is read when the server is found: by then somebody else has chosen it.
        return {ATTACHED: ProfileBytes(known=0, compute=0, file=0, cold_file=0, entry=0)}
    models: dict[str, GgufModel] = {}
    planned = {}
    for profile in settings.worker.profiles:
        _check_extra(profile)
        if profile.model not in models:
            models[profile.model] = _read(profile)
        model = models[profile.model]
        if model.context_length and profile.context > model.context_length:
            raise TidegateError(
                f"cannot use context = {profile.context} of profile {profile.name!r}: "
                f"the model was trained for {model.context_length}"
            )
        planned[profile.name] = profile_bytes(model, profile)
    _check_budget(settings, planned)
    return planned


def _read(profile: Profile) -> GgufModel:
    try:
        return read_gguf(profile.model)
    except TidegateError as error:
        is_demo = profile.model == demo_model_path(os.environ) and not os.path.exists(profile.model)
        hint = error.hint or ("tidegate model gets it" if is_demo else "")
        message = error.message.replace("cannot read model", f"cannot read the model of profile {profile.name!r},", 1)
        raise TidegateError(message, hint=hint) from None


def profile_bytes(model: GgufModel, profile: Profile) -> ProfileBytes:
    """Planned bytes of ``model`` in the shape of ``profile`` on this machine."""
    shape = footprint.plan(model, profile, machine=platform.machine())
    return ProfileBytes(
        known=shape.anon,
        compute=shape.compute,
        file=shape.weights_file,
        cold_file=min(shape.weights_anon, shape.weights_file),
        entry=footprint.kv_bytes(model, profile.context, 1, profile.kv_type, profile.kv_type),
    )


def _check_extra(profile: Profile) -> None:
    for word in profile.extra:
        if word.partition("=")[0] in OWNED_FLAGS:
            raise TidegateError(
                f"cannot use extra flag {word} of profile {profile.name!r}: tidegate sets it itself",
                hint="use the profile's own keys",
            )


def _check_budget(settings: Settings, planned: dict[str, ProfileBytes]) -> None:
    budget = settings.memory.budget
    if budget is None:
        return
    name, least = min(((name, each.known) for name, each in planned.items()), key=lambda pair: pair[1])
    if least > budget * settings.memory.warn:
        raise TidegateError(
            f"cannot use memory.budget = {format_size(budget)}: the smallest profile, {name!r}, needs "
            f"{format_size(least)}, more than {settings.memory.warn:.0%} of it"
        )
