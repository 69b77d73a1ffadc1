"""The templates of the page, with autoescape: what is not escaped was written in this folder."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from causal_attn.errors import MissingDependencyError
from causal_attn.verify.page.text import middle, visible, whole

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["environment", "render"]


def render(template: str, /, **values: Any) -> str:
    """The file `template` of this folder, filled in.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
    return environment().get_template(template).render(values)


@cache
def environment() -> Environment:
    """The templates of this folder, and the filters that make text readable.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup, escape
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "The report page needs jinja2, which is not installed. "
            "Install it with: pip install 'causal-attn[verify]'",
            name="jinja2",
        ) from error

    def breakable(text: str) -> Markup:
        """Names of nodes are paths: a line may end after a slash, but need not."""
        return Markup(str(escape(text)).replace("/", "/<wbr>"))

    loader = PackageLoader("causal_attn.verify.page", "")
    # StrictUndefined: a name that is misspelt in a template is an error, not an empty place.
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"breakable": breakable, "middle": middle, "visible": visible, "whole": whole}
    made.globals["style"] = Markup(loader.get_source(made, "page.css")[0])
    return made
