"""Which bands the caller may ask for, and the refusal of the others."""

from gpufleet.errors import FieldViolation, GpufleetError, Reason

from ...state.limits import BandRights
from ...state.specs import Band
from ..roles import PEOPLE, caller


def bands_of_caller(rights: BandRights) -> tuple[Band, ...]:
    """The bands that the caller may ask for, lowest first; none for who submits no jobs."""
    who = caller()
    return tuple(sorted(rights.of(who.user, is_admin=who.is_admin))) if who.role in PEOPLE else ()


def check_band(rights: BandRights, band: Band, path: str) -> None:
    """Refuse a band that the caller may not ask for; `path` is its field. Errors: BAND_REFUSED."""
    who = caller()
    allowed = rights.of(who.user, is_admin=who.is_admin)
    if band in allowed:
        return
    own = " and ".join(filter(None, (", ".join(map(band_word, sorted(allowed)[:-1])), band_word(max(allowed)))))
    why = f"{band_word(band)} is for admins, and for users who have it by a setting; {who.user} has {own}"
    raise GpufleetError(
        Reason.BAND_REFUSED,
        f"{path}: {why}",
        violations=[FieldViolation(path, why)],
        next_step=f"Choose {' or '.join(map(band_word, sorted(allowed)))}, "
        f"or ask an admin for an entry in [policy] bands of scheduler.toml.",
    )


def default_band(rights: BandRights) -> Band:
    """The band of a job that names none: normal, or the nearest one that the caller has, lower ones first."""
    allowed = bands_of_caller(rights) or (Band.NORMAL,)
    return max((band for band in allowed if band <= Band.NORMAL), default=allowed[0])


def band_within(rights: BandRights, band: Band) -> Band:
    """The band itself, or the highest one below it that the caller has, or their lowest one."""
    allowed = bands_of_caller(rights) or (band,)
    return max((each for each in allowed if each <= band), default=allowed[0])


def band_word(band: Band) -> str:
    """A band as people write it."""
    return band.name.lower()
