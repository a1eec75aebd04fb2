"""`clozelab inspect`: a prepared corpus, and what a model reads of it in pre-training."""

from __future__ import annotations

from clozelab.files.atomic import atomic_open
from clozelab.modules.answering import parse_output
from clozelab.report.inspection import print_inspection, render_page
from clozelab.terminal import ParsedArgs, say, told_if_slow, verb

HELP = """clozelab inspect [CORPUS] [name=value ...] [html=PAGE.html]

Shows a corpus before anything is trained on it: what was left out, the lengths
of sentences, documents and instances, tokens a word and unknown words by
source, some documents, and some training instances with what is hidden in them
and what is predicted. CORPUS is the folder of a prepared corpus; without it,
the arguments are those of `clozelab pretrain`, and the corpus is prepared.
They also choose the objective, and with it how instances are made.

  documents=3   so many documents, drawn by seed=
  document=17   this document of the training split instead
  instances=3   so many training instances of one step
  step=0        the optimizer step whose first instances these are
  html=FILE     the same as a page, which needs no other file

  clozelab inspect text=FOLDER objective=mlm_nsp
  clozelab inspect ~/.cache/clozelab/corpora/text-0123456789ab objective=spans"""
NUMBERS = {"documents": "3", "instances": "3", "step": "0"}
KEYS = (*NUMBERS, "document", "html")


@verb("inspect", HELP, names=(0, 1), keys=KEYS, takes_overrides=True)
def main(args: ParsedArgs) -> int:
    """Print what there is, or write the page; returns the exit status."""
    values = args.values
    if {"documents", "document"} <= values.keys():
        raise ValueError(
            f"document={values['document']} shows one document, so documents={values['documents']}"
            " would change nothing: leave one out"
        )
    numbers = {}
    for key, usual in NUMBERS.items():
        numbers[key] = parse_number(key, values.get(key, usual))
    page = None
    if "html" in values:
        page = parse_output("html", values["html"], (".html",))
    with told_if_slow("inspect: loading PyTorch and Lightning"):
        from clozelab.assembly.inspecting import configuration, inspect_corpus

    folder = next(iter(args.names), None)
    with told_if_slow("inspect: composing the configuration"):
        composed = configuration(args.overrides, folder)
    document = None
    if "document" in values:
        document = parse_number("document", values["document"])
    inspection = inspect_corpus(composed, folder, document=document, **numbers)
    if page is None:
        print_inspection(inspection)
        return 0
    with atomic_open(page) as file:
        file.write(render_page(inspection))
    say(str(page))
    return 0


def parse_number(key: str, text: str) -> int:
    """A whole number from 0 on; ValueError for any other text."""
    if not text.isdecimal():
        raise ValueError(f"{key}={text}: give a whole number from 0 on")
    return int(text)
