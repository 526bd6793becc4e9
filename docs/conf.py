"""Sphinx configuration."""

import sys
from pathlib import Path

import dask_gpuagg

sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(Path(__file__).parents[1])]

project = "dask-gpuagg"
author = "the dask-gpuagg contributors"
project_copyright = author
release = version = dask_gpuagg.__version__

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "numpydoc",
    "package_facts",
]
exclude_patterns = ["_build", "_generated"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# notebooks run as the pages are built; that of a GPU has the outputs of one
nb_execution_mode = "force"
nb_execution_excludepatterns = ["notebooks/gpu.ipynb"]
nb_execution_raise_on_error = True
nb_execution_timeout = 120

autodoc_typehints = "none"  # numpydoc's sections state the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = f"dask-gpuagg {release}"
