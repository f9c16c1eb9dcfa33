"""JavaScript of the chat page in node, for the tests of its modules."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aerie.serve.app

FOLDER = Path(aerie.serve.app.__file__).parent / "page"
IMPORTS = f"""
import {{GrowingText, parseBlocks}} from "{FOLDER}/blocks.mjs";
import {{safeUrl}} from "{FOLDER}/inline.mjs";
import * as conversations from "{FOLDER}/conversations.mjs";
import {{Answer, ENDS, events, requestBody, splitThinking}} from "{FOLDER}/answers.mjs";
import {{ConversationStore}} from "{FOLDER}/storage.mjs";
import {{describe}} from "{FOLDER}/server.mjs";
import {{simulation}} from "{Path(__file__).parent}/tabs.mjs";
const nodes = text => parseBlocks(text).map(({{node}}) => node);
function short(node) {{
  if (typeof node === "string") return node;
  if (node.tag === "code-block") return {{[node.tag]: [node.language, node.code]}};
  const href = node.attributes?.href;
  return {{[node.tag]: [...(href ? [`-> ${{href}}`] : []), ...node.children.map(short)]}};
}}
"""


def in_node(expression: str, before: str = "") -> Any:
    """The value of a JavaScript expression."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    text = f"{IMPORTS}\n{before}\nconsole.log(JSON.stringify({expression}) ?? null)"
    command = [node, "--input-type=module", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
