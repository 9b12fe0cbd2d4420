"""Cross-validation over hospitals with a pipeline of scikit-learn."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tfp_bfl as bfl

X, y = load_breast_cancer(return_X_y=True)
hospitals = np.random.default_rng(0).integers(12, size=len(y))
models = {
    "FederatedGLM": bfl.sklearn.FederatedGLM("bernoulli"),
    "LogisticRegression": LogisticRegression(C=2.5**2, tol=1e-10, solver="newton-cholesky"),
    "BayesianLastLayer": bfl.sklearn.BayesianLastLayer("softmax"),
}
for name, model in models.items():
    pipeline = make_pipeline(StandardScaler(), model)
    given = {} if name == "LogisticRegression" else {f"{name.lower()}__groups": hospitals}
    options = {"groups": hospitals, "cv": GroupKFold(4), "params": given}
    accuracy = cross_val_score(pipeline, X, y, **options)
    p = cross_val_predict(pipeline, X, y, method="predict_proba", **options)
    ece = bfl.evaluation.expected_calibration_error(p, y)
    nll = bfl.evaluation.negative_log_likelihood(p, y)
    print(f"{name:18}  accuracy {accuracy.mean():.3f}  NLL {float(nll):.3f}  ECE {float(ece):.3f}")

x = StandardScaler().fit_transform(X)
ours, other = (models[name].fit(x, y) for name in ("FederatedGLM", "LogisticRegression"))
difference = ours.posterior_.mean - [*other.intercept_, *other.coef_[0]]
print(f"largest difference of two coefficients: {np.max(np.abs(difference)):.0e}")
