"""QLSD on a Gaussian posterior in closed form and on logistic regression: errors against bits, as published."""
