"""Methods that a publication describes and that few federations need: nothing else imports them."""
