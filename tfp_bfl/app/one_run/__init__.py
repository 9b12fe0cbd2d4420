"""One run: its folder, training, report and export, and what is made of it afterwards."""
