"""What every section of the configuration is made of: closed, frozen models and strict, bounded number types."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# Strict: true is no 1, "3" is no 3 and 2.0 is no 2, since behind such a value is a mistake. A whole number is a float.
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
PositiveFraction = Annotated[float, Field(gt=0, le=1, strict=True)]
DecayRate = Annotated[float, Field(ge=0, lt=1, strict=True)]


def without_credentials(url: str) -> str:
    """The URL, if it holds no user or password and names a place; ValueError if not."""
    if _NOWHERE.fullmatch(url):
        raise ValueError("it names no place after ://")
    if _CREDENTIALS.search(url):
        raise ValueError(
            "credentials in a URL end up in manifests and logs; take them out, and give them by the environment "
            "(such as AWS_ACCESS_KEY_ID) or a file that the storage library reads"
        )
    return url


def mask_credentials(text: str) -> str:
    """Text without the user and password of any URL in it."""
    return _CREDENTIALS.sub("//***@", text)


_NOWHERE = re.compile(r"[A-Za-z0-9+.-]+://[/\s]*")
_CREDENTIALS = re.compile(r"//[^/@\s]+@")

Url = Annotated[str, AfterValidator(without_credentials)]
"""A URL or a path, which a run writes down and shows: never with a password in it."""

EMBEDDED = "embedded"
"""Name of the tiny model that ships with the project (data/tiny)."""


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
