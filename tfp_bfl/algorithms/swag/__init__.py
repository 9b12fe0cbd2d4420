"""FL-SWAG: one-shot federated learning by products of the clients' SWAG posteriors."""
