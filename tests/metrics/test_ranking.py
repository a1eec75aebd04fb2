"""Rankings are scored as trec_eval scores them; random orders as many random orders are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clozelab.metrics.ranking import (
    TopDocuments,
    mean_scores,
    metrics_of_names,
    random_score,
    ranks_of,
    score_hits,
)

NAMES = ("ndcg_at_10", "recall_at_100", "recall_at_5", "map", "mrr", "mrr_at_10")
OURS = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100", "recall_at_5": "recall_5"}
OURS |= {"map": "map", "mrr": "recip_rank"}


@pytest.mark.parametrize("ties", [True, False])
def test_scores_are_trec_evals(ties: bool) -> None:
    """Graded judgements, equal scores, queries without a relevant document, unfound documents."""
    oracle = pytest.importorskip("pytrec_eval")
    draw = np.random.default_rng(0)
    documents = [f"d{number}" for number in draw.permutation(400)]
    queries = [f"q{number}" for number in range(30)]
    queries[3] = "d7"  # is never its own document
    judgements = {}
    for query in queries:
        names = draw.choice(documents, 12, replace=False)
        grades = dict(zip(names.tolist(), draw.integers(0, 4, 12).tolist(), strict=True))
        judgements[query] = grades | {"lost": 2}
    judgements["q9"] = {"d1": 0}
    scores = draw.normal(size=(30, 400)).astype(np.float32)
    if ties:
        scores = scores.round(0)
    top = TopDocuments(queries, 150)
    for start in range(0, 400, 64):
        top.add(scores[:, start : start + 64], documents[start : start + 64])
    run = {}
    for query, row in zip(queries, scores.tolist(), strict=True):
        run[query] = dict(zip(documents, row, strict=True))
        run[query].pop(query, None)
    # What trec_eval itself ranks below 150 is cut, by its own order.
    for query, found in run.items():
        order = sorted(found.items(), key=lambda item: (item[1], item[0]), reverse=True)[:150]
        run[query] = dict(order)
    best = top.best
    for query, hits in best.items():
        assert {name: score for score, name in hits} == run[query]
    expected = oracle.RelevanceEvaluator(judgements, set(OURS.values())).evaluate(run)
    shortened = {query: dict(list(found.items())[:10]) for query, found in run.items()}
    first_ten = oracle.RelevanceEvaluator(judgements, {"recip_rank"}).evaluate(shortened)
    for query in queries:
        found = score_hits(NAMES, best[query], judgements[query])
        for name, theirs in OURS.items():
            assert found[name] == pytest.approx(expected[query][theirs], abs=1e-9), (query, name)
        assert found["mrr_at_10"] == pytest.approx(first_ten[query]["recip_rank"], abs=1e-9)
    assert set(score_hits(NAMES, best["q9"], judgements["q9"]).values()) == {0.0}


def test_equal_scores_earn_nothing() -> None:
    assert ranks_of(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), [1, 3]) == [3, 4]
    assert ranks_of(np.zeros(5), [0, 2]) == [4, 5]
    assert ranks_of(np.array([2.0, 1.0]), [0]) == [1]


def test_a_random_order_is_the_mean_of_all_orders() -> None:
    names = ("recall_at_2", "ndcg_at_3", "map", "mrr", "mrr_at_2")
    for num_relevant, num_documents in ((1, 5), (2, 6), (3, 4)):
        places = itertools.combinations(range(1, num_documents + 1), num_relevant)
        expected = mean_scores(names, [list(ranks) for ranks in places])
        for name in names:
            found = random_score(name, num_relevant, num_documents)
            assert found == pytest.approx(expected[name], abs=1e-12), (name, num_relevant)


@pytest.mark.parametrize("name", ["recall", "recall_at_0", "map_at_10", "accuracy"])
def test_unknown_metrics_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"metrics={name}: choose recall_at_K"):
        metrics_of_names(["mrr", name])
