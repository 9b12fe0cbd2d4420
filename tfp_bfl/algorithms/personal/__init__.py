"""Models of single clients: meta-learning, MetaVD and pFedBayes, their scores, and clients that come later."""

from tfp_bfl.algorithms.personal.evaluation import ClientScores, evaluate_clients, fit_newcomers, summarise_clients

__all__ = ["ClientScores", "evaluate_clients", "fit_newcomers", "summarise_clients"]
