"""Builds the documentation site (`make docs-site`), and is the hook of mkdocs that fits the pages to it.

    python docs/build_site.py DIRECTORY       # writes DIRECTORY/VERSION, versions.json and index.html beside it

Design
------
Pages link to files of the repository, which a site does not have. Such a link becomes the name of the file, except to
runbooks and the files at the top, which are pages of the site. Each version has a directory of its own, with the
configuration and the metrics of that version: earlier ones stay as they were built.
"""

import html
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
REFERENCE = "configuration.md"
ABOUT = """# Configuration

Every key of `caboose.toml` with its default and its meaning, as `caboose config reference` prints it. A flag takes
precedence over the environment, the environment over the file, the file over the default; `caboose config show` prints
what is in force and why.

"""


def version() -> str:
    """The version of this checkout."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def configuration() -> str:
    """The page of the configuration."""
    from caboose_daemon.ops.config_reference import reference

    return f"{ABOUT}Version {version()}.\n\n```toml\n{reference()}```\n"


def on_config(config: Any, **_: Any) -> Any:
    """The title has the version."""
    config["site_name"] = f"Caboose {version()}"
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Adds pages that are not in this directory: the configuration, the runbooks, the changelog."""
    from mkdocs.structure.files import File

    made = {REFERENCE: configuration(), "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")}
    for path in sorted((ROOT / "dashboards" / "runbooks").glob("*.md")):
        made[f"runbooks/{path.name}"] = path.read_text(encoding="utf-8")
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository."""
    depth = page.file.src_uri.count("/")
    return LINK.sub(lambda found: _fitted(found, depth, page.file.src_uri), markdown)


def _fitted(found: re.Match[str], depth: int, source: str) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    if source.startswith("runbooks/"):
        inside = target.removeprefix("../../docs/")
        return f"[{text}](../{inside}{anchor})" if inside != target else text
    path = target
    for _ in range(depth):
        path = path.removeprefix("../")
    up = "../" * depth
    if not path.startswith("../"):
        return found[0]  # it stays in this directory
    path = path.removeprefix("../")
    if path.startswith("dashboards/runbooks/") and path.endswith(".md"):
        return f"[{text}]({up}runbooks/{Path(path).name}{anchor})"
    if path == "CHANGELOG.md":
        return f"[{text}]({up}changelog.md{anchor})"
    if path == "README.md":
        return f"[{text}]({up}index.md)"
    name = f"`{path.rstrip('/')}`"
    return name if text.strip("`") in path else f"{text} ({name})"


def main() -> int:
    """Builds this version beside those that are there."""
    out = Path(sys.argv[1]).resolve()
    name = version()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", "mkdocs.yml"]
    ended = subprocess.run([*command, "--site-dir", str(out / name)], cwd=ROOT, check=False)  # noqa: S603 - constants
    if ended.returncode:
        return ended.returncode
    versions = sorted((path.name for path in out.iterdir() if (path / "index.html").is_file()), reverse=True)
    (out / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    links = "".join(f'<li><a href="{html.escape(v)}/">{html.escape(v)}</a></li>' for v in versions)
    head = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={html.escape(name)}/">'
    (out / "index.html").write_text(f"{head}<title>Caboose</title><ul>{links}</ul>\n", encoding="utf-8")
    sys.stdout.write(f"{out / name}/index.html\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
