"""Labels of results and durations, as reports, model cards and the command line write them."""

# Prefix of a key -> how it changes the label of the rest of the key.
_PREFIXES = {
    "last_round_": "{}, last round",
    "member_": "{}, mean over members",
    "adapted_": "{}, after adaptation",
    "permuted_": "{}, standard deviations permuted",
    "unpermuted_": "{}, same examples, not permuted",
    "num_": "Number of {}",
}
LABELS = {
    "nll": "Training NLL",
    "kl": "KL",
    "tempered_elbo": "ELBO (tempered)",
    "test_nll": "NLL",
    "rmse": "RMSE",
    "mae": "MAE",
    "ece": "ECE",
    "mce": "MCE",
    "brier": "Brier score",
    "auroc": "AUROC",
    "crps": "CRPS",
    **{
        f"{name}_{end}": f"{name.capitalize()}, {words} end of its 95 % interval"
        for name in ("sensitivity", "specificity")
        for end, words in (("low", "lower"), ("high", "upper"))
    },
    "macro_recall": "Balanced accuracy (macro recall)",
    "coverage": "Coverage of 90 % intervals",
    "interval_width": "Width of 90 % intervals",
    "entropy": "Entropy (divided by log C)",
    "aleatoric": "Aleatoric variance",
    "epistemic": "Epistemic variance",
    "mutual_information": "Mutual information (divided by log C)",
    "variance": "Predictive variance",
    "epistemic_share": "Epistemic fraction",
    "stddev_q05": "Standard deviations, 5 % quantile",
    "stddev_median": "Standard deviations, median",
    "stddev_q95": "Standard deviations, 95 % quantile",
    "stddev_log_ratio": "Standard deviations, log(q95 / q05)",
    "share_at_floor": "Fraction of weights at the minimum standard deviation",
    "dropout_rate_q05": "Dropout rates of clients, 5 % quantile",
    "dropout_rate_median": "Dropout rates of clients, median",
    "dropout_rate_q95": "Dropout rates of clients, 95 % quantile",
    "dropout_rate_stddev": "Mean dropout rate, standard deviation over clients",
    "logit_stddev": "Logits of variances, standard deviation over clients",
    "saturated_share": "Fraction of variances at the top of their range",
    "collapsed_in_round": "Posterior collapsed in round",
    "client_accuracy": "Accuracy on the clients' test data, mean",
    "client_accuracy_least": "Accuracy on the clients' test data, minimum",
    "unseen_client_accuracy": "Accuracy on held-out clients, mean",
    "unseen_client_accuracy_least": "Accuracy on held-out clients, minimum",
    "epsilon": "Differential privacy, epsilon",
    "example_epsilon": "Differential privacy of examples, epsilon",
    "delta": "Differential privacy, delta",
    "num_clients": "Number of clients",
    "num_faulty": "Number of faulty clients",
    "num_dropped": "Number of dropped clients",
    "num_scored": "Number of sites with scores",
    "averaged_rounds": "Number of averaged rounds",
    "members": "Number of members",
    "kept_weights": "Number of weights at the anchor's value",
    "pretrained_epochs": "Pretraining epochs",
    "pretrained_accuracy": "Accuracy after pretraining, held-out server data",
    "pretrained_test_accuracy": "Accuracy after pretraining",
    "pretrained_test_nll": "NLL after pretraining",
    "weights_mb": "Weights of all members (MB)",
    "seconds": "Total time",
    "train_seconds": "Training time",
    "ms_per_step": "Time per local step",
    "worker_mb": "Peak memory of the worker",
    "process_mb": "Peak memory of the program",
    "upload_mb": "Upload",
    "download_mb": "Download",
    "upload_bits": "Upload (bits)",
    "upload_bound": "Upload, upper bound (bits)",
    "download_bits": "Download (bits)",
    "pruned_weights": "Pruned weights per client",
}

# Units of keys with a label that states none.
_UNITS = {
    "seconds": "s",
    "ms_per_step": "ms",
    "worker_mb": "MB",
    "process_mb": "MB",
    "upload_mb": "MB",
    "download_mb": "MB",
}
_UNITS |= {"train_seconds": "s"}


# What users call a score -> its key.
ALIASES = {"nll": "test_nll"}


def label_of(key: str) -> str:
    """Return the label of a key of a summary, of metrics or of a round."""
    if key in LABELS:
        return LABELS[key]
    for prefix, form in _PREFIXES.items():
        if key.startswith(prefix):
            rest = key.removeprefix(prefix)
            return form.format(label_of(rest) if prefix != "num_" else rest.replace("_", " "))
    return key.replace("_", " ").capitalize()


def with_unit(key: str) -> str:
    """Return the label of a key with the unit of its plain numbers, such as "Total time (s)"."""
    return label_of(key) + (f" ({_UNITS[key]})" if key in _UNITS else "")


def duration(seconds: float) -> str:
    """Return a duration in words, such as "0.49 s", "40 s", "2 min 5 s" and "3 h 25 min"."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for size, unit, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            number, rest = whole // size, whole % size // smaller
            return f"{number} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"
