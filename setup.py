"""Write the description of a package index: README.md without relative links and images, which lead nowhere there."""

import pathlib
import re

import setuptools

readme = (pathlib.Path(__file__).parent / "README.md").read_text(encoding="utf-8")
readme = re.sub(r"^!\[[^]]*\]\((?!https:)[^)]*\)\n\n\*.*?[^*]\*\n\n", "", readme, flags=re.DOTALL | re.MULTILINE)
readme = re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", readme)
setuptools.setup(long_description=re.sub("<!--.*?-->", "", readme))
