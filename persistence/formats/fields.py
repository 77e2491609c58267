"""A file's tensors and metadata, asked for one by one: what is wrong is named. Pure: any thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvactors.core.cache.segment import RawTensor
from kvactors.persistence.errors import ImportRejected, TokensMissing
from kvactors.persistence.formats.neutral import PLAIN, Target, Tensor, to_float32

__all__ = ["Fields", "TensorTable"]

_SHOWN = 60


class TensorTable:
    """The tensors of a file by name; each is taken once, in the form it must have."""

    def __init__(self, tensors: Sequence[RawTensor]) -> None:
        self._left = {name: (dtype, shape, data) for name, dtype, shape, data in tensors}

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, dtypes: Sequence[str], shape: tuple[int | None, ...]) -> Tensor:
        """The tensor `name`, of one of these `dtypes`; None in `shape` is any length.

        Raises ImportRejected naming the tensor; also for floats that are not finite.
        """
        if name not in self._left:
            raise ImportRejected(name, "this tensor is missing")
        dtype, found, data = self._left.pop(name)
        if dtype not in dtypes:
            raise ImportRejected(name, f"its dtype is {dtype}, not {' or '.join(dtypes)}")
        wanted = shape if len(shape) == len(found) else ()
        if len(wanted) != len(found) or any(
            length not in (None, have) for length, have in zip(wanted, found, strict=True)
        ):
            form = ", ".join("any" if length is None else str(length) for length in shape)
            raise ImportRejected(name, f"its shape is {list(found)}, not [{form}]")
        tensor = Tensor(dtype, np.frombuffer(data, dtype=PLAIN[dtype]).reshape(found))
        if dtype in ("F16", "BF16", "F32") and not np.isfinite(to_float32(tensor)).all():
            raise ImportRejected(name, "it holds numbers that are not finite")
        return tensor

    def check_empty(self) -> None:
        """Raise ImportRejected if a tensor is left that nobody asked for."""
        for name in self._left:
            raise ImportRejected(name, "the format has no tensor of this name here")


class Fields:
    """Metadata. safetensors knows strings only; what was no string is JSON in one."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def text(self, name: str) -> str:
        """A string; "" if it is not there."""
        value = self._metadata.get(name, "")
        if not isinstance(value, str):
            raise ImportRejected(name, f"{value!r:.{_SHOWN}} is no string")
        return value

    def number(self, name: str) -> int:
        """A count above 0. Raises ImportRejected if it is missing or none."""
        value = self._json(name)
        if type(value) is not int or value < 1:
            raise ImportRejected(name, f"{value!r:.{_SHOWN}} is no count above 0")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A JSON object. Raises ImportRejected if it is missing or none."""
        value = self._json(name)
        if not isinstance(value, dict):
            raise ImportRejected(name, f"{value!r:.{_SHOWN}} is no JSON object")
        return value

    def below(self, prefix: str) -> Fields:
        """The fields whose names begin so, by the rest of their names."""
        return Fields(
            {k.removeprefix(prefix): v for k, v in self._metadata.items() if k.startswith(prefix)}
        )

    def token_ids(
        self, given: Sequence[int] | None, covered: int, target: Target
    ) -> tuple[int, ...]:
        """The token ids of which the first `covered` have KV: those `given`, else the file's.
        They must be tokens of `target`.

            Raises TokensMissing, or ImportRejected naming what breaks a rule.
        """
        name = "token_sequence" if given is None else "tokens"
        if given is None and name not in self._metadata:
            raise TokensMissing(
                name,
                "the file does not say which tokens its KV is of: give their ids "
                "(tokens=[...], or --tokens FILE with a JSON list)",
            )
        found = self._json(name) if given is None else list(given)
        if not isinstance(found, list):
            raise ImportRejected(name, f"{found!r:.{_SHOWN}} is no list")
        for place, token in enumerate(found):
            if type(token) is not int or not 0 <= token < target.vocab_size:
                raise ImportRejected(
                    f"{name}[{place}]",
                    f"{token!r:.{_SHOWN}} is no token id: 0 <= id < {target.vocab_size}",
                )
        if not found or len(found) < covered:
            raise ImportRejected(name, f"{len(found)} token ids for KV of {covered} tokens")
        if len(found) > target.context:
            raise ImportRejected(
                name, f"{len(found)} tokens exceed the model's context of {target.context}"
            )
        return tuple(found)

    def _json(self, name: str) -> Any:
        if name not in self._metadata:
            raise ImportRejected(name, "this field of the metadata is missing")
        value = self._metadata[name]
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ImportRejected(name, f"no JSON: {error}") from error
