"""Labels of results and durations."""

import pytest

from tfp_bfl import labels


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0 s"), (0.494, "0.49 s"), (9.96, "10 s"), (40.4, "40 s"), (59.7, "1 min"), (125, "2 min 5 s")),
        *((3599.6, "1 h"), (12300, "3 h 25 min"), (97200, "1 d 3 h")),
    ],
)
def test_durations(seconds, words):
    assert labels.duration(seconds) == words


@pytest.mark.parametrize(
    ("key", "label"),
    [
        *(("nll", "Training NLL"), ("test_nll", "NLL"), ("kl", "KL"), ("tempered_elbo", "ELBO (tempered)")),
        *(("ece", "ECE"), ("accuracy", "Accuracy"), ("num_clients", "Number of clients")),
        *(("member_test_nll", "NLL, mean over members"), ("permuted_ece", "ECE, standard deviations permuted")),
        *(("adapted_client_accuracy", "Accuracy on the clients' test data, mean, after adaptation"),),
        *(("num_empty_windows", "Number of empty windows"), ("macro_precision", "Macro precision")),
    ],
)
def test_labels(key, label):
    assert labels.label_of(key) == label == labels.with_unit(key)


def test_plain_numbers_have_a_unit():
    assert [labels.with_unit(x) for x in ("seconds", "upload_mb")] == ["Total time (s)", "Upload (MB)"]
