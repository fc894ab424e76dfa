"""Citations and metrics of the usual sets, by name."""

from __future__ import annotations

from jaxgnn.data.sets.dataset import Metadata, Metric

_PLANETOID = (
    "Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, "
    "ICML 2016"
)
_PITFALLS = "Shchur et al., Pitfalls of Graph Neural Network Evaluation, 2018"
_CITATION_FULL = (
    "Bojchevski and Günnemann, Deep Gaussian Embedding of Graphs: Unsupervised Inductive Learning "
    "via Ranking, ICLR 2018"
)
_HETEROPHILOUS = (
    "Platonov et al., A Critical Look at the Evaluation of GNNs under Heterophily: Are We Really "
    "Making Progress?, ICLR 2023"
)

_GRAPHSAINT = "Zeng et al., GraphSAINT: Graph Sampling Based Inductive Learning Method, ICLR 2020"
_GRAPHSAGE = "Hamilton et al., Inductive Representation Learning on Large Graphs, NeurIPS 2017"
_OGB = "Hu et al., Open Graph Benchmark: Datasets for Machine Learning on Graphs, NeurIPS 2020"

_CITATIONS = {
    **dict.fromkeys(("cora", "citeseer", "pubmed"), _PLANETOID),
    **dict.fromkeys(("amazon_electronics_photo", "amazon_electronics_computers"), _PITFALLS),
    **dict.fromkeys(("amazon_photo", "amazon_computers", "ms_academic_cs"), _PITFALLS),
    **dict.fromkeys(("dblp", "cora_full", "citeseer_full", "cora_ml"), _CITATION_FULL),
    **dict.fromkeys(
        ("minesweeper", "tolokers", "questions", "roman_empire", "amazon_ratings"), _HETEROPHILOUS
    ),
    **dict.fromkeys(("flickr", "yelp"), _GRAPHSAINT),
    **dict.fromkeys(("reddit", "ppi"), _GRAPHSAGE),
    **dict.fromkeys(("ogbn_arxiv", "ogbn_products", "ogbn_proteins"), _OGB),
}


def metadata_of(
    name: str, *, source: str, notes: str = "", metric: Metric = "accuracy"
) -> Metadata:
    """Metadata of a set read from a file; the files themselves state no license."""
    return Metadata(
        source=source,
        citation=_CITATIONS.get(name.lower().replace("-", "_"), ""),
        license="see the source of the file",
        notes=notes,
        metric=metric,
    )
