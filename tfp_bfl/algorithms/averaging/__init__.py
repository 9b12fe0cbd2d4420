"""Federated averaging of posteriors and of samples: FedPA, FedBE, FedKP, FedAG, FedSGLD and FedOpt."""
