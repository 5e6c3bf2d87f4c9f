"""Task files of lm-evaluation-harness with local data: one of each kind of request, and some that are wrong."""

import json
from pathlib import Path

DOCUMENTS = [
    {"country": "France", "choices": ["Paris", "Rome", "Lima"], "answer": 0},
    {"country": "Italy", "choices": ["Paris", "Rome", "Lima"], "answer": 1},
    {"country": "Spain", "choices": ["Madrid", "Oslo"], "answer": 0},
    {"country": "Peru", "choices": ["Lima", "Quito", "Rome", "Bonn"], "answer": 0},
    {"country": "Norway", "choices": ["Oslo", "Bergen"], "answer": 0},
]
CHOICE = """task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/capitals.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{country}}:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
TEXTS = """task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/capitals.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "The capital of {{country}} is {{choices[answer]}}, a city with a long history."
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
"""
ANSWERS = """task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/capitals.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{country}}:"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""
GROUP = "group: all_of_them\ntask: [capitals, texts]\n"
NAMES = ("capitals", "texts", "answers")


def task_files(folder: Path) -> Path:
    """Writes the data and a task file of each kind; returns their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "capitals.jsonl").write_text("".join(f"{json.dumps(document)}\n" for document in DOCUMENTS))
    for name, content in {"capitals": CHOICE, "texts": TEXTS, "answers": ANSWERS, "all": GROUP}.items():
        (folder / f"{name}.yaml").write_text(content.replace("FOLDER", str(folder)))
    return folder


def wrong_file(folder: Path, old: str, new: str, content: str = CHOICE, name: str = "wrong") -> None:
    """Writes a task file that differs from a good one in one place."""
    assert old in content
    changed = content.replace(content.splitlines()[0], f"task: {name}").replace(old, new)
    (folder / f"{name}.yaml").write_text(changed.replace("FOLDER", str(folder)))
