"""Applications: the command line and `bfl.run`, from options to the folder of a run.

In all modules `config` is the configuration of the run, `code` is what a program gives in the place of names, and
`weights` says what the weights of its model are (`options.resolve.weights_of`). What does not fit is an
`InvalidArgument`, raised before anything is trained or written. A run that names code is read again with `code`, a
mapping from options to FILE.py:FUNCTION, as this code is executed.
"""
