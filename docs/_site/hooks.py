"""What mkdocs does besides turning Markdown into pages: the reference is made from the code, and links are checked.

Pages link to files of the repository (``../grpo_pipeline/rewards.py``), which a reader of the repository follows. The
site does not hold those files, so there such a link becomes its text; one that leads nowhere fails the build.
"""

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from reference import PAGES

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code."""
    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files outside the docs into text; raises PluginError where there is no such file."""
    docs = Path(config.docs_dir)
    here = docs / PurePosixPath(page.file.src_uri).parent

    def settle(match: re.Match[str]) -> str:
        target = (here / match[2]).resolve()
        if target.is_relative_to(docs):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: the link to {match[2]} leads nowhere")
        return f"`{match[1]}`" if "`" not in match[1] else match[1]

    return _LINK.sub(settle, markdown)
