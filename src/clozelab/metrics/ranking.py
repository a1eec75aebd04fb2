"""How well documents are ranked for queries: recall, reciprocal rank, nDCG and average precision.

All are as trec_eval computes them (`pytrec_eval`): a document of grade 1 or more is relevant, the
gain of nDCG is the grade itself, and a query without a relevant document scores 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozelab.metrics.metric import Metric

Floats = NDArray[np.floating]
Hits = list[tuple[float, str]]  # (score, id) of documents, the best first
NAME = re.compile(r"(recall|ndcg|mrr)_at_([1-9]\d*)|mrr|map")


def metrics_of_names(names: Iterable[str]) -> list[Metric]:
    """The metrics of some names; ValueError for one that is not computed."""
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"metrics={name}: choose recall_at_K, ndcg_at_K, mrr_at_K (K is a whole number,"
                " as in recall_at_10), mrr or map"
            )
    return [Metric.share(name) for name in names]


def score_ranks(name: str, ranks: ArrayLike, grades: ArrayLike, ideal: ArrayLike) -> float:
    """The score of one query, a share of one.

    Args:
        name: of a metric.
        ranks: of the relevant documents that were found, rising; the first is 1.
        grades: of these.
        ideal: grades of all relevant documents, falling, whether they were found or not.
    """
    family, _, cutoff = name.partition("_at_")
    within = np.asarray(ranks, dtype=np.float64)
    all_grades = np.asarray(ideal)
    if cutoff:
        within = within[within <= int(cutoff)]
    if not len(within):
        return 0.0
    if family == "recall":
        return len(within) / len(all_grades)
    if family == "mrr":
        return float(1 / within[0])
    if family == "map":
        return float((np.arange(1, len(within) + 1) / within).sum() / len(all_grades))
    gain = (np.asarray(grades)[: len(within)] / np.log2(1 + within)).sum()
    best = all_grades[: int(cutoff)]
    return float(gain / (best / np.log2(np.arange(2, len(best) + 2))).sum())


def score_hits(names: Iterable[str], hits: Hits, judgements: Mapping[str, int]) -> dict[str, float]:
    """The scores of one query's ranked documents; `judgements`: id -> grade."""
    ranks = []
    grades = []
    for rank, (_, document) in enumerate(hits, 1):
        grade = judgements.get(document, 0)
        if grade > 0:
            ranks.append(rank)
            grades.append(grade)
    relevant = [grade for grade in judgements.values() if grade > 0]
    ideal = np.array(sorted(relevant, reverse=True))
    return {name: score_ranks(name, ranks, grades, ideal) for name in names}


def ranks_of(scores: Floats, relevant: Sequence[int]) -> list[int]:
    """The ranks [R], rising, of the relevant among documents with scores [P].

    Of equally good ones the relevant stand last: the same score for all earns nothing.
    """
    of_relevant = np.sort(scores[relevant])[::-1]
    others = np.sort(np.delete(scores, relevant))
    # How many of the others are as good or better.
    ahead = len(others) - np.searchsorted(others, of_relevant, side="left")
    return (ahead + np.arange(1, len(of_relevant) + 1)).tolist()


def mean_scores(names: Iterable[str], ranks: Sequence[Sequence[int]]) -> dict[str, float]:
    """Means over queries, of whose relevant documents (all of grade 1) these are the ranks."""
    means = {}
    for name in names:
        scores = [score_ranks(name, of, np.ones(len(of)), np.ones(len(of))) for of in ranks]
        means[name] = float(np.mean(scores))
    return means


def random_score(name: str, num_relevant: int, num_documents: int) -> float:
    """What a random order of the documents scores on average, of one query."""
    family, _, cutoff = name.partition("_at_")
    ranks = np.arange(1, min(int(cutoff or num_documents), num_documents) + 1)
    share = num_relevant / num_documents
    if family == "recall":
        return len(ranks) / num_documents
    if family == "ndcg":
        best = min(num_relevant, len(ranks))
        discounts = 1 / np.log2(1 + ranks)
        return float(share * discounts.sum() / discounts[:best].sum())
    if family == "map":
        harmonic = (1 / ranks).sum()
        others = (num_relevant - 1) / max(1, num_documents - 1)
        return float((harmonic + others * (num_documents - harmonic)) / num_documents)
    # The share of a rank of all orders in which no relevant document stands before it.
    chances = np.minimum(1.0, num_relevant / (num_documents - ranks + 1))
    nothing_before = np.cumprod(np.append(1.0, 1 - chances[:-1]))
    return float((nothing_before * chances / ranks).sum())


class TopDocuments:
    """The best documents of each query, of scores that come a part at a time.

    Of equal scores the greater id, as text, comes first, as in trec_eval. A document with the
    query's own id is left out, as BEIR does.

    Args:
        queries: ids of the queries, Q of them.
        depth: how many documents of each are kept.
    """

    def __init__(self, queries: Sequence[str], depth: int) -> None:
        self.depth = depth
        self.best: dict[str, Hits] = {query: [] for query in queries}  # the best first

    def add(self, scores: Floats, documents: Sequence[str]) -> None:
        """Scores [Q, C] of C further documents."""
        for (query, hits), of_query in zip(self.best.items(), scores, strict=True):
            least = hits[-1][0] if len(hits) == self.depth else -np.inf
            for document in np.flatnonzero(of_query >= least).tolist():
                if documents[document] != query:
                    hits.append((float(of_query[document]), documents[document]))
            hits.sort(reverse=True)
            del hits[self.depth :]
