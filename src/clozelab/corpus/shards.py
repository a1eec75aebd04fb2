"""Token shards on disk: writer, memory-mapped reader, and the prepared corpus folder.

The folder holds two splits and a tokenizer. A split is a handful of raw little-endian arrays, so a
batch is one fancy-indexing call on a memory map.

    train/tokens-00000.bin ...   uint16 (uint32 from 65,537 ids on), rolled at a document boundary
                                 above a size
    train/sentence_offsets.bin   int64[num_sentences + 1], token positions over all token files
                                 together
    train/document_offsets.bin   int64[num_documents + 1], sentence indices
    train/document_source.bin    uint8[num_documents], index into source_names
    train/document_origin.bin    int64[num_documents], number of the whole document that each is,
                                 or is a part of
    train/shards.json            counts and checksums of the above

Special tokens are never stored: whoever builds an instance adds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.manifest import CorpusManifest, CorpusSettings, SplitFacts
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.files.digests import digest, file_facts, file_sha256
from clozelab.text.plain import PlainDict, read_json

SHARDS_FILE = "shards.json"
MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 2
# of one file before the writer rolls: 512 MiB of uint16; most corpora stay one file
MAX_SHARD_TOKENS = 2**28
SPLITS = ("train", "validation")
ARRAYS = {  # name -> type, beside the tokens
    "sentence_offsets": "<i8",
    "document_offsets": "<i8",
    "document_source": "u1",
    "document_origin": "<i8",
}
CLEANING = [{"name": "clean", "version": 1, "settings": {}}]
AGAIN = "delete the prepared corpus folder and run the prepare stage again"


def token_dtype(vocab_size: int) -> np.dtype[np.integer]:
    if vocab_size <= 2**16:
        return np.dtype("<u2")
    return np.dtype("<u4")


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
        """(first position, ids as stored) of stretches of at most `size` + `overlap` tokens.

        None goes over a file's end.
        """
        for file, end in zip(self._files, self._ends.tolist(), strict=True):
            for start in range(0, len(file), size):
                yield end - len(file) + start, file[start : start + size + overlap]

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Ids at token positions of any shape, int64 of the same shape.

        A position outside [0, len) reads the nearest token: a batch does so for slots of special
        tokens, which are overwritten.
        """
        positions = np.asarray(positions, dtype=np.int64)
        if len(self._files) == 1:
            return self._files[0].take(positions, mode="clip").astype(np.int64)
        # One gather from each file; its tokens begin where the file before it ends.
        ids = np.empty(positions.shape, dtype=np.int64)
        positions = np.clip(positions, 0, len(self) - 1)
        file_of = np.searchsorted(self._ends, positions, side="right")
        for index in np.unique(file_of):
            is_here = file_of == index
            file = self._files[index]
            begin = self._ends[index] - len(file)
            ids[is_here] = file[positions[is_here] - begin]
        return ids

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """The `width` ids from each start on, as stored [..., width]; `starts` [...] in C order.

        A position outside [0, len) reads the nearest token, as in `take`.
        """
        dtype = self._files[0].dtype
        # A window is one item of `width` ids: to copy it is faster than to gather its tokens.
        window = np.dtype(f"V{width * dtype.itemsize}")
        windows = np.empty(starts.shape, window)
        is_read = np.zeros(starts.shape, dtype=bool)
        for file, end in zip(self._files, self._ends.tolist(), strict=True):
            num_windows = len(file) - width + 1
            first = starts - (end - len(file))
            is_inside = (first >= 0) & (first < num_windows)
            if not is_inside.any():
                continue
            # Item i of this view begins at the file's token i, without a copy.
            all_windows = np.ndarray(num_windows, window, file, strides=file.strides)
            if is_inside.all():
                return all_windows[first].view(dtype).reshape(*starts.shape, width)
            windows[is_inside] = all_windows[first[is_inside]]
            is_read |= is_inside
        ids = windows.view(dtype).reshape(*starts.shape, width)
        ids[~is_read] = self.take(starts[~is_read][:, None] + np.arange(width))
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

    @cached_property
    def tokens_by_source(self) -> Mapping[str, int]:
        """Name of each source -> its tokens."""
        tokens = np.diff(np.asarray(self.sentence_offsets)[np.asarray(self.document_offsets)])
        counts = np.zeros(len(self.source_names), dtype=np.int64)
        np.add.at(counts, np.asarray(self.document_source), tokens)
        return dict(zip(self.source_names, counts.tolist(), strict=True))

    @classmethod
    def open(cls, folder: str | Path) -> TokenShards:
        """Map a split's files.

        ValueError where one is missing or has another size than `shards.json` says.
        """
        folder = Path(folder)
        # Files are found by what shards.json lists, and their sizes are compared there.
        facts: SplitFacts = _read_facts(folder / SHARDS_FILE)
        dtype = token_dtype(facts["vocab_size"])
        names = sorted(name for name in facts["files"] if name.startswith("tokens-"))
        tokens = TokenStream([_map(folder / name, dtype) for name in names])
        arrays = {}
        for name, kind in ARRAYS.items():
            arrays[name] = _map(folder / f"{name}.bin", kind)
        return cls(
            tokens=tokens,
            **arrays,
            source_names=tuple(facts["source_names"]),
            vocab_size=facts["vocab_size"],
            unigram_entropy=facts["unigram_entropy"],
            fingerprint=facts["fingerprint"],
        )


def _map(path: Path, dtype: np.dtype[np.integer] | str) -> np.ndarray:
    if path.stat().st_size == 0:  # mmap refuses an empty file
        return np.empty(0, dtype=dtype)
    # A plain ndarray over the map: np.memmap's own indexing costs a Python call per result.
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def _read_facts(path: Path) -> Any:
    """A JSON file that names the files of its folder.

    ValueError where it is unusable, or one of them is not whole.
    """
    try:
        facts = read_json(path)
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
        actual = file.stat().st_size
        if actual != entry["size"]:
            raise ValueError(f"{file} has {actual} bytes instead of {entry['size']}; {AGAIN}")
    return facts


class ShardWriter:
    """Streams documents into a split's files.

    It needs the memory of one batch, and a counter for each entry of the vocabulary. On a clean
    exit of the context `shards.json` gets `facts`, without which a folder does not open.
    """

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int,
        source_names: Sequence[str],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.vocab_size = vocab_size
        self.source_names = list(source_names)
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self.token_counts = np.zeros(vocab_size, dtype=np.int64)
        self.facts: SplitFacts  # once it is closed
        self._dtype = token_dtype(vocab_size)
        self._tokens = [self._create("tokens-00000")]
        self._arrays = {name: self._create(name) for name in ARRAYS}
        # Offsets begin with a zero.
        self._append("sentence_offsets", np.zeros(1))
        self._append("document_offsets", np.zeros(1))

    def _create(self, name: str) -> BinaryIO:
        return (self.folder / f"{name}.bin").open("wb")

    def _append(self, name: str, values: np.ndarray) -> None:
        self._arrays[name].write(values.astype(ARRAYS[name]).tobytes())

    def add(
        self,
        ids: np.ndarray,
        sentences: np.ndarray,
        documents: np.ndarray,
        sources: np.ndarray,
        origins: np.ndarray,
        *,
        can_begin_file: bool = True,
    ) -> None:
        """Append D documents of S sentences; no length is 0.

        Args:
            ids: their tokens.
            sentences: [S] tokens of each sentence.
            documents: [D] sentences of each document.
            sources: [D] indices into source_names.
            origins: [D] numbers of the whole documents.
            can_begin_file: whether they may begin another file of tokens.
        """
        # an id beyond the vocabulary would make the counts longer, and is refused
        self.token_counts += np.bincount(ids, minlength=self.vocab_size)
        # A new file begins between two calls, so between two documents.
        is_full = self._tokens[-1].tell() >= MAX_SHARD_TOKENS * self._dtype.itemsize
        if can_begin_file and is_full:
            self._tokens.append(self._create(f"tokens-{len(self._tokens):05d}"))
        self._tokens[-1].write(ids.astype(self._dtype).tobytes())
        # Behind 10 tokens, sentences of 3 and 2 end at [13, 15].
        self._append("sentence_offsets", self.num_tokens + np.cumsum(sentences))
        self._append("document_offsets", self.num_sentences + np.cumsum(documents))
        self._append("document_source", sources)
        self._append("document_origin", origins)
        self.num_tokens += len(ids)
        self.num_sentences += len(sentences)
        self.num_documents += len(documents)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        files = {}
        for file in (*self._tokens, *self._arrays.values()):
            file.close()
            path = Path(file.name)
            files[path.name] = file_facts(path)
        fingerprint = digest([self.vocab_size, files])
        self.facts = {
            "vocab_size": self.vocab_size,
            "source_names": self.source_names,
            "num_tokens": self.num_tokens,
            "num_sentences": self.num_sentences,
            "num_documents": self.num_documents,
            "unigram_entropy": unigram_entropy(self.token_counts),
            "files": files,
            "fingerprint": fingerprint,
        }
        if error is None:
            text = json.dumps(self.facts, indent=2) + "\n"
            (self.folder / SHARDS_FILE).write_text(text, encoding="utf-8")


def unigram_entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the distribution proportional to `counts` [V]; 0 for no counts."""
    probabilities = counts[counts > 0] / max(1, counts.sum())
    return float(max(0.0, -(probabilities * np.log(probabilities)).sum()))


def unigram_log_probabilities(shards: TokenShards) -> np.ndarray:
    """Log of the share of a split's tokens that each entry of the vocabulary has, float64 [V].

    A token that the split does not have counts half a time, so that none is minus infinity.
    """
    counts = np.full(shards.vocab_size, 0.5)
    for _, block in shards.tokens.blocks(1 << 20):
        counts += np.bincount(block, minlength=shards.vocab_size)
    log_probabilities: np.ndarray = np.log(counts / counts.sum())
    return log_probabilities


def unigram_loss(shards: TokenShards, labels: np.ndarray) -> float:
    """Nats a label [P] by the frequencies of a split's tokens alone."""
    return float(-unigram_log_probabilities(shards)[labels].mean())


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus folder: a tokenizer and two splits.

    The manifest says how they came about.
    """

    folder: Path
    manifest: CorpusManifest
    tokenizer: Tokenizer
    train: TokenShards
    validation: TokenShards

    @property
    def fingerprint(self) -> str:
        """sha256 over the checksums of every file.

        It names what the content is, whatever it was made from.
        """
        return self.manifest["fingerprint"]

    def words_per_token(self) -> np.ndarray:
        """Words that a token of each source has on average, float64 [sources]."""
        word_facts = self.manifest["words"]
        ratios = []
        for name in self.train.source_names:
            ratios.append(word_facts[name]["words"] / max(1, word_facts[name]["tokens"]))
        return np.array(ratios)

    @classmethod
    def open(cls, folder: str | Path) -> PreparedCorpus:
        """Open a folder, whose files' sizes are compared.

        ValueError for a missing or damaged file, and where tokenizer and shards do not belong
        together.
        """
        folder = Path(folder)
        manifest: CorpusManifest = _read_facts(folder / MANIFEST_FILE)
        if manifest.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"{folder} has format {manifest.get('format_version')}, this version reads"
                f" {FORMAT_VERSION}; {AGAIN}"
            )
        if "words" not in manifest:
            raise ValueError(f"{folder} does not count its words; {AGAIN}")
        tokenizer = read_tokenizer(folder / "tokenizer")
        train = TokenShards.open(folder / "train")
        validation = TokenShards.open(folder / "validation")
        is_same_vocabulary = tokenizer.fingerprint == manifest["tokenizer_fingerprint"]
        if not is_same_vocabulary or tokenizer.vocab_size != train.vocab_size:
            raise ValueError(
                f"the vocabulary in {folder}/tokenizer is not the one the shards were made with;"
                f" {AGAIN}"
            )
        return cls(folder, manifest, tokenizer, train, validation)

    def require_checksums(self) -> None:
        """ValueError for a file that has changed since it was written."""
        for name, entry in self.manifest["files"].items():
            if file_sha256(self.folder / name) != entry["sha256"]:
                raise ValueError(f"{self.folder / name} has changed since it was written; {AGAIN}")


def split_facts(settings: CorpusSettings) -> PlainDict:
    """How each of several sources holds out some of its own text; empty for one source."""
    return {key: value for key, value in settings.items() if key == "split_version"}


def further_steps(settings: CorpusSettings) -> list[PlainDict]:
    """The steps of a manifest's settings; none where they do what was done before there were steps.

    That is cleaning.
    """
    steps = settings["steps"]
    if steps == CLEANING:
        return []
    return steps
