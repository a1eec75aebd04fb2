"""`clozelab export`: a run's model, or anybody's, in a folder that other programs load."""

from __future__ import annotations

from pathlib import Path

from clozelab.files.atomic import refuse_to_replace
from clozelab.report.model_export import FORMATS, export_model
from clozelab.terminal import SWITCH, ParsedArgs, verb

CHOICES = {
    "format": FORMATS,
    "pooling": ("auto", "mean", "cls"),
    "dtype": ("float32", "float16", "bfloat16"),
    "head": SWITCH,
    "checkpoint": SWITCH,
    "hub": SWITCH,
}
HELP = """\
clozelab export MODEL [to=FOLDER]
        [format=transformers|onnx|sentence_transformers|peft] [head=false]
        [dtype=float16] [base=ENCODER]

Writes a model for use elsewhere: config.json, model.safetensors, the
tokenizer's files, and a card (README.md) with data, recipe, seeds, scores, cost
and limits. MODEL is a run's folder, a folder in the Hugging Face layout, one of
Google's BERT (TensorFlow), a file of weights beside its config.json or, with
hub=true, NAME@COMMIT on the hub.

  to=FOLDER                     where it goes
  format=transformers           the class of transformers that has the model's
                                head; head=false: the encoder alone
  format=onnx                   the same, and onnx/model.onnx for any batch and
                                length (pip install 'clozelab[export]')
  format=sentence_transformers  the encoder, and pooling=mean or pooling=cls of
                                its last layer (as it was trained, else mean)
  format=peft                   of a run with adaptation=lora: what was trained
                                alone, for PeftModel.from_pretrained
  base=ENCODER                  MODEL is a folder of peft's: merged into this
                                model (without base=, into the one it names)
  dtype=float16                 weights of half the size, for a release; or
                                bfloat16
  checkpoint=true               the encoder as the run's newest checkpoint has
                                it, by itself and without a card, into
                                RUN/encoders/step-N unless to= says otherwise;
                                of a run without an encoder/ always

`hf upload NAME FOLDER --private` (of huggingface_hub) puts it on the hub.

  clozelab export runs/adhoc/demo/pretrain/mlm/seed-1 to=my-bert
  clozelab export uncased_L-12_H-768_A-12 to=bert-base  # Google's: vocab.txt,
                                                        bert_config.json,
                                                        bert_model.ckpt.*"""


@verb("export", HELP, names=(1, 1), keys=("to", "base"), choices=CHOICES)
def main(args: ParsedArgs) -> int:
    """Write the folder and print where it is; returns the exit status."""
    to = None
    if "to" in args.values:
        to = Path(args.values["to"])
        refuse_to_replace(to)
    if "dtype" in args.values and args.values.get("format") == "onnx":
        raise ValueError("dtype and format=onnx do not go together: onnx/model.onnx is in float32")
    print(export_model(args.names[0], to, args.values))
    return 0
