"""Token shards on disk: writer, memory-mapped reader, and the prepared corpus folder: two of them
and a tokenizer.

A split is a handful of raw little-endian arrays, so a batch is one fancy-indexing call on a memory
map.

    train/tokens-00000.bin ...   uint16 (uint32 from 65,537 ids on), rolled at a document boundary
    above a size
    train/sentence_offsets.bin   int64[num_sentences + 1], token positions over all token files
    together
    train/document_offsets.bin   int64[num_documents + 1], sentence indices
    train/document_source.bin    uint8[num_documents], index into source_names
    train/document_origin.bin    int64[num_documents], number of the whole document that each is, or
    is a part of
    train/shards.json            counts and checksums of the above

Special tokens are never stored: whoever builds an instance adds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.corpus.files import digest, file_facts, file_sha256
from clozelab.corpus.tokenizers import Tokenizer, read_tokenizer

SHARDS_FILE = "shards.json"
MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 2
# of one file before the writer rolls: 512 MiB of uint16; most corpora stay one file
MAX_SHARD_TOKENS = 2**28
SPLITS = ("train", "validation")
AGAIN = "delete the prepared corpus folder and run the prepare stage again"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


class TokenStream:
    """A split's token files as one array of `len(stream)` token ids, to read."""

    def __init__(self, files: Sequence[np.ndarray]) -> None:
        self._files = list(files)
        self._ends = np.cumsum([len(file) for file in self._files], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, positions: slice) -> np.ndarray:
        """Ids of a contiguous range, int64 [n]."""
        start, stop, step = positions.indices(len(self))
        return self.take(np.arange(start, stop, step, dtype=np.int64))

    def blocks(self, size: int, overlap: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """(first position, ids as stored) of stretches of at most `size` + `overlap` tokens, none
        over a file's end.
        """
        for file, end in zip(self._files, self._ends.tolist(), strict=True):
            for start in range(0, len(file), size):
                yield end - len(file) + start, file[start : start + size + overlap]

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Ids at token positions of any shape, int64 of the same shape; IndexError outside [0,
        len).
        """
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(f"token position outside 0..{len(self) - 1}")
        if len(self._files) == 1:
            return self._files[0][positions].astype(np.int64)
        ids, which = (
            np.empty(positions.shape, dtype=np.int64),
            np.searchsorted(self._ends, positions, side="right"),
        )
        for index in np.unique(which):
            here, file = which == index, self._files[index]
            ids[here] = file[positions[here] - (self._ends[index] - len(file))]
        return ids


@dataclass(frozen=True)
class TokenShards:
    """One split of a prepared corpus, memory-mapped."""

    tokens: TokenStream
    sentence_offsets: np.ndarray  # int64 [num_sentences + 1], token positions
    document_offsets: np.ndarray  # int64 [num_documents + 1], sentence indices
    document_source: np.ndarray  # uint8 [num_documents], index into source_names
    source_names: tuple[str, ...]
    vocab_size: int
    unigram_entropy: float  # nats per token of this split's own unigram distribution
    fingerprint: str
    # int64 [num_documents]: equal for parts of one; None: all are whole
    document_origin: np.ndarray | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_offsets) - 1

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    @classmethod
    def open(cls, folder: str | Path) -> TokenShards:
        """Maps a split's files; ValueError where one is missing or has another size than
        `shards.json` says.
        """
        folder = Path(folder)
        facts = _read_facts(folder / SHARDS_FILE)
        dtype = token_dtype(facts["vocab_size"])
        tokens = [
            _map(folder / name, dtype)
            for name in sorted(facts["files"])
            if name.startswith("tokens-")
        ]
        return cls(
            tokens=TokenStream(tokens),
            sentence_offsets=_map(folder / "sentence_offsets.bin", "<i8"),
            document_offsets=_map(folder / "document_offsets.bin", "<i8"),
            document_source=_map(folder / "document_source.bin", "u1"),
            document_origin=_map(folder / "document_origin.bin", "<i8"),
            source_names=tuple(facts["source_names"]),
            **{name: facts[name] for name in ("vocab_size", "unigram_entropy", "fingerprint")},
        )


def _map(path: Path, dtype: np.dtype[Any] | str) -> np.ndarray:
    if path.stat().st_size == 0:  # mmap refuses an empty file
        return np.empty(0, dtype=dtype)
    # A plain ndarray over the map: np.memmap's own indexing costs a Python call per result.
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def _read_facts(path: Path) -> dict[str, Any]:
    """A JSON file that names the files of its folder; ValueError where it is unusable or one of
    them is not whole.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{path.parent} is no corpus: {path.name} is missing; run the prepare stage"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}") from None
    for name, entry in facts.get("files", {}).items():
        file = path.parent / name
        if not file.is_file():
            raise ValueError(f"{file} is missing; {AGAIN}")
        if (actual := file.stat().st_size) != entry["size"]:
            raise ValueError(f"{file} has {actual} bytes instead of {entry['size']}; {AGAIN}")
    return facts


class ShardWriter:
    """Streams documents into a split's files, in memory of one batch and a counter for each entry
    of the vocabulary; on a clean exit of the context `shards.json` gets `facts`, without which a
    folder does not open."""

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int,
        source_names: Sequence[str],
        max_shard_tokens: int = MAX_SHARD_TOKENS,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.vocab_size, self.source_names = folder, vocab_size, list(source_names)
        self.max_shard_tokens = max_shard_tokens
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self.token_counts = np.zeros(vocab_size, dtype=np.int64)
        self.facts: dict[str, Any] = {}
        self._dtype = token_dtype(vocab_size)
        names = (
            "tokens-00000",
            "sentence_offsets",
            "document_offsets",
            "document_source",
            "document_origin",
        )
        tokens, *self._others = ((folder / f"{name}.bin").open("wb") for name in names)
        self._tokens = [tokens]
        for file in self._others[:2]:
            file.write(np.zeros(1, dtype="<i8").tobytes())

    def add(
        self,
        ids: np.ndarray,
        sentences: np.ndarray,
        documents: np.ndarray,
        sources: np.ndarray,
        origins: np.ndarray,
    ) -> None:
        """Appends D documents of S sentences: token ids, tokens per sentence [S], sentences per
        document [D], indices into source_names [D] and numbers of the whole documents [D]; no
        length is 0."""
        assert len(ids) == sentences.sum() and len(sentences) == documents.sum()
        assert len(documents) == len(sources) == len(origins)
        counts = np.bincount(ids, minlength=self.vocab_size)
        assert len(counts) == self.vocab_size, "token id outside the vocabulary"
        self.token_counts += counts
        if self._tokens[-1].tell() >= self.max_shard_tokens * self._dtype.itemsize:
            self._tokens.append((self.folder / f"tokens-{len(self._tokens):05d}.bin").open("wb"))
        arrays: tuple[tuple[np.ndarray, Any], ...] = (
            (ids, self._dtype),
            (self.num_tokens + np.cumsum(sentences), "<i8"),
            (self.num_sentences + np.cumsum(documents), "<i8"),
            (sources, "u1"),
            (origins, "<i8"),
        )
        for file, (values, dtype) in zip((self._tokens[-1], *self._others), arrays, strict=True):
            file.write(values.astype(dtype).tobytes())
        self.num_tokens += len(ids)
        self.num_sentences += len(sentences)
        self.num_documents += len(documents)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        files = {}
        for file in (*self._tokens, *self._others):
            file.close()
            files[Path(file.name).name] = file_facts(Path(file.name))
        self.facts = {
            "vocab_size": self.vocab_size,
            "source_names": self.source_names,
            **{
                name: getattr(self, name)
                for name in ("num_tokens", "num_sentences", "num_documents")
            },
            "unigram_entropy": unigram_entropy(self.token_counts),
            "files": files,
            "fingerprint": digest([self.vocab_size, files]),
        }
        if kind is None:
            (self.folder / SHARDS_FILE).write_text(
                json.dumps(self.facts, indent=2) + "\n", encoding="utf-8"
            )


def unigram_entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the distribution proportional to `counts` [V]; 0 for no counts."""
    probabilities = counts[counts > 0] / max(1, counts.sum())
    return float(max(0.0, -(probabilities * np.log(probabilities)).sum()))


def unigram_loss(shards: TokenShards, labels: np.ndarray) -> float:
    """Nats a label [P] by the frequencies of a split's tokens alone; what it has never counts half
    a time.
    """
    counts = np.full(shards.vocab_size, 0.5)
    for _, block in shards.tokens.blocks(1 << 20):
        counts += np.bincount(block, minlength=shards.vocab_size)
    return float(-np.log(counts[labels] / counts.sum()).mean())


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus folder: tokenizer and two splits, with the manifest of how they came
    about.
    """

    folder: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer
    train: TokenShards
    validation: TokenShards

    @property
    def fingerprint(self) -> str:
        """sha256 over the checksums of every file: what the content is, whatever it was made
        from.
        """
        return self.manifest["fingerprint"]

    @classmethod
    def open(cls, folder: str | Path, verify: str = "sizes") -> PreparedCorpus:
        """Sizes are compared always, checksums with `verify="full"`. ValueError for a missing,
        changed or damaged file, and where tokenizer and shards do not belong together."""
        folder = Path(folder)
        manifest = _read_facts(folder / MANIFEST_FILE)
        if manifest.get("format_version") != FORMAT_VERSION:
            found = (
                f"{folder} has format {manifest.get('format_version')}, this version reads"
                f" {FORMAT_VERSION}"
            )
            raise ValueError(f"{found}; {AGAIN}")
        for name, entry in manifest["files"].items():
            if verify == "full" and file_sha256(folder / name) != entry["sha256"]:
                raise ValueError(f"{folder / name} has changed since it was written; {AGAIN}")
        tokenizer = read_tokenizer(folder / "tokenizer")
        train, validation = (TokenShards.open(folder / split) for split in SPLITS)
        if (
            tokenizer.fingerprint != manifest["tokenizer_fingerprint"]
            or tokenizer.vocab_size != train.vocab_size
        ):
            raise ValueError(
                f"the vocabulary in {folder}/tokenizer is not the one the shards were made with;"
                f" {AGAIN}"
            )
        return cls(folder, manifest, tokenizer, train, validation)
