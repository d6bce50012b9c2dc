"""A hook of MkDocs: pages of the root become pages of the site, and links point where the site has them.

README.md is the first page; ARCHITECTURE.md, CONTRIBUTING.md, SECURITY.md and CHANGELOG.md follow. A link to something
that is no page (a folder of the sources, the licence) becomes plain text: the site is read
without the repository.
"""

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent

# Page of the site → file of the repository, both from the root.
ROOT_PAGES: Final = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
_SITE_OF: Final = {source: page for page, source in ROOT_PAGES.items()}
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's pages to those of docs/."""
    for page, source in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of *page* at pages of the site."""
    source = ROOT_PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda link: _relinked(link, source, files), markdown)


def _relinked(link: re.Match[str], source: str, files: Files) -> str:
    picture, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = _SITE_OF.get(path, path.removeprefix("docs/"))
    if files.get_file_from_path(page) is None:
        return text if (ROOT / path).exists() else link[0]  # MkDocs reports targets that do not exist
    return f"{picture}[{text}]({page}{anchor})"
