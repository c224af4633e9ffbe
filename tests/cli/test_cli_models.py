"""Models from anywhere, as a user types them: evaluated, trained from, exported, asked."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

import mrboost
from commands import done, error_of, json_of, results_of, snapshot
from mrboost.cli.main import main
from mrboost.data import Dataset
from mrboost.models import Logits, Normalize, registry

MYNETS = '''
from types import SimpleNamespace

import torch
from torch import nn


def linear(shape, classes):
    """As a run's models are."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


class Net(nn.Module):
    """With a default, and logits in a dictionary."""

    def __init__(self, num_classes=3, key="logits"):
        super().__init__()
        self.layer, self.key = nn.Linear(64, num_classes), key

    def forward(self, x):
        return {"loss": None, self.key: self.layer(x.flatten(1))}


class Several(Net):
    def forward(self, x):
        return self.layer(x.flatten(1)), None


class Answer(Net):
    def forward(self, x):
        return SimpleNamespace(logits=self.layer(x.flatten(1)))


def nothing(pretrained=True):
    torch.manual_seed(0)
    return linear((1, 8, 8), 10)


network = nothing()
weight = network[1].weight.detach()


def answers(images):
    return network(images)


def rounds(images):
    return network(images.round())


def of_arrays(images):
    return images.reshape(len(images), -1) @ weight.numpy().T


class Session:
    """As an InferenceSession of ONNX Runtime, of one image at a time."""

    def get_inputs(self):
        return [SimpleNamespace(name="input", shape=[1, 1, 8, 8], type="tensor(float)")]

    def run(self, outputs, feed):
        (images,) = feed.values()
        assert images.shape == (1, 1, 8, 8) and outputs is None
        scores = of_arrays(images)
        return [scores.argmax(axis=1), scores]


def three(a, b, c): ...


def other_key():
    return Net(10, key="scores")


number = 3
'''


@pytest.fixture
def here(tmp_path: Path, forgotten: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's file, from which commands are typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mynets", raising=False)
    Path("mynets.py").write_text(MYNETS)
    return tmp_path


@pytest.fixture(scope="session")
def weights(digits: Dataset) -> dict[str, torch.Tensor]:
    """Of a linear network that expects normalised digits."""
    layer = nn.Linear(64, 10)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.Adam(layer.parameters(), 0.02)
    x = (digits.train.images().flatten(1) - 0.3) / 0.4
    for _ in range(40):
        optimizer.zero_grad()
        mrboost.losses.cross_entropy(layer(x), digits.train.y).backward()
        optimizer.step()
    return {key: value.detach() for key, value in layer.state_dict().items()}


QUICK = ["--data", "digits", "--attack", "fgsm", "--n", "60", "--device", "cpu", "--quiet"]


def test_a_function_of_a_file_is_evaluated_like_a_run(here, weights, digits, capsys) -> None:
    torch.save({"state_dict": {f"module.1.{k}": v for k, v in weights.items()}}, "w.pt")
    given = ["evaluate", "mynets.py:linear", "--weights", "w.pt", "--normalize", "0.3,0.4", *QUICK]
    (found,) = json_of(capsys, *given)["evaluations"]
    folder = Path("evaluations/digits-mynets-linear-w")
    assert (found["eps"], found["norm"], found["weights"]) == (0.1, "Linf", "given")

    network = nn.Sequential(Normalize([0.3], [0.4]), nn.Flatten(), nn.Linear(64, 10))
    network[2].load_state_dict(weights)
    test = digits.test[torch.tensor(results_of(folder)["evaluations"][0]["points"])]
    direct = mrboost.evaluate(network, test, attack="fgsm", eps=0.1, check=False)
    assert direct["clean"].accuracy > 0.85
    for mine, theirs in zip(direct.outcomes, found["outcomes"], strict=True):
        assert list(mine.correct) == theirs["correct"]

    document = json_of(capsys, *given, "--eps", "0.05,0.1", "--no-check", "--attack", "pgd-3")
    assert [point["eps"] for point in document["curves"][0]["points"]] == [0.05, 0.1]
    kept = results_of(folder)["evaluations"]
    assert [len(evaluation["outcomes"]) for evaluation in kept] == [2, 3], "merged by ball"
    done("report", folder, "--import", "mynets.py:linear", "--n", "20", "--quiet")
    page = (folder / "report.html").read_text()
    assert "mynets.py:linear" in page
    assert "Measured" in page
    assert "What the attack does" in page
    assert "Training" not in page

    torch.save({f"1.{key}": value / 2 for key, value in weights.items()}, "w.pt")
    json_of(capsys, *given)
    (kept,) = results_of(folder)["evaluations"]
    assert len(kept["outcomes"]) == 2, "figures of other weights are of another model"


def test_an_interrupted_evaluation_of_a_model_goes_on(here, capsys, monkeypatch) -> None:
    attack, calls = mrboost.attacks.PGD.__call__, []

    def counted(self, *images, **more):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return attack(self, *images, **more)

    monkeypatch.setattr(mrboost.attacks.PGD, "__call__", counted)
    command = ["evaluate", "mynets:nothing", *QUICK[:-1], "--attack", "pgd-3,cw", "--no-check"]
    assert main(command) == 130
    done(*command, "--resume")
    assert len(calls) == 3
    out = capsys.readouterr().out
    assert "mynets:nothing, as it is: 60 images, Linf eps = 0.1" in out
    folder = "evaluations/digits-mynets-nothing"
    assert out.splitlines()[-2:] == [
        "  --attack autoattack",
        f"next: mrboost report {folder} --import=mynets:nothing",
    ]
    assert (
        f"kept in {folder}\nnext: mrboost evaluate {folder} \\\n  --import=mynets:nothing \\\n"
        in out
    )


@pytest.mark.parametrize("name", ["Net", "Several", "Answer", "nothing", "network", "answers"])
def test_what_a_name_may_stand_for(name: str, here, capsys) -> None:
    """Answers in any usual form; a class, a function, a network, a function of images."""
    (found,) = json_of(capsys, "evaluate", f"mynets:{name}", *QUICK)["evaluations"]
    assert len(found["outcomes"][0]["per_class"]) == 10
    same = json_of(capsys, "evaluate", "mynets:nothing", *QUICK, "--out", "same")["evaluations"][0]
    if name[0].islower():
        assert found["outcomes"][1]["correct"] == same["outcomes"][1]["correct"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("mynets:nett --data digits", "unknown function of mynets 'nett': did you mean Net"),
        ("missing.py:net --data digits", "cannot import 'missing.py'"),
        ("mynets:three --data digits", "takes (a, b, c): a model is a function or class of"),
        ("mynets:number --data digits", "mynets:number is a int: name a function or an nn.Module"),
        ("mynets:other_key --data digits", "answers with loss, scores, and no 'logits'"),
        ("mynets:linear", "give --data NAME"),
        (
            "mynets:linear --data digits --weights none.pt",
            "none.pt': give a safetensors or .pt file",
        ),
        ("mynets:linear --data digits --weights mynets.py", "holds no weights alone"),
        ("mynets:linear --data digits --weights code.pt", "unpickling more could run code"),
        ("mynets:linear --data digits --weights w.pkl", "unpickling more could run code"),
        ("mynets.py --data digits", "a model is named as file.py:function"),
        (
            "mynets:linear --data digits --weights w.safetensors",
            'Missing key(s) in state_dict: "1.weight"',
        ),
        ("mynets:answers --data digits --weights w.safetensors", "is a function of images"),
        ("mynets:linear --data digits --normalize 0.3", "normalize is MEAN,STD"),
        ("mynets:linear --data digits --norm L2", "give --eps for norm 'L2'"),
        ("mynets:linear --data digits --out taken", "'taken' exists and holds no evaluations"),
        ("resnet18 --data digits", "'resnet18' has no weights of its own: give --weights FILE"),
        ("timm:net --data digits", "pip install timm"),
        ("hf:a/net --data digits", "pip install transformers"),
        ("timm:../net --data digits", "cannot import 'timm'"),
    ],
)
def test_mistakes_with_models_get_one_line(arguments: str, message: str, here, capsys) -> None:
    class Code:
        def __reduce__(self):
            return print, ("run",)

    torch.save({"weight": Code()}, "code.pt")
    Path("w.pkl").write_bytes(pickle.dumps({"weight": torch.zeros(2)}))
    safetensors.torch.save_file({"weight": torch.zeros(2)}, "w.safetensors")
    Path("taken").mkdir()
    Path("taken/notes.txt").write_text("mine")
    Path("mynets.py").touch()
    before = snapshot(here)
    assert message in error_of(capsys, "evaluate", *arguments.split())
    assert {path for path in snapshot(here) if "__pycache__" not in str(path)} == set(before)


def test_a_run_never_imports_code_that_the_user_did_not_name(here, capsys) -> None:
    json_of(capsys, "evaluate", "mynets:nothing", *QUICK, "--out", "kept")
    registry._REGISTRY.pop("mynets:nothing")
    for command in ("evaluate", "report"):
        message = error_of(capsys, command, "kept")
        assert "is code that was not imported: if you trust it, --import mynets:nothing" in message
    again = ["evaluate", "kept", "--import", "mynets:nothing", "--quiet", "--attack", "cw"]
    json_of(capsys, *again, "--n", "60")
    assert len(results_of(Path("kept"))["evaluations"][0]["outcomes"]) == 3
    assert "--data is for a model, and 'kept' is a run" in error_of(
        capsys, "evaluate", "kept", "--data", "digits"
    )
    assert "is the folder of another model (model: 'mynets:nothing' -> 'mynets:Net')" in error_of(
        capsys, "evaluate", "mynets:Net", *QUICK, "--out", "kept"
    )


def test_models_of_other_packages(here, capsys, monkeypatch) -> None:
    """Stand-ins for timm, torchvision and transformers: what they are asked for."""
    asked = []

    def make(*names: str, **settings: object) -> nn.Module:
        asked.append((*names, settings))
        classes = settings.get("num_classes", 10)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    def answer(*names: str, **settings: object) -> nn.Module:
        network = make(*names, **settings)
        network.register_forward_hook(lambda _, __, logits: SimpleNamespace(logits=logits))
        return network

    stubs = {
        "timm": {"create_model": make},
        "torchvision": {"models": SimpleNamespace(get_model=make)},
        "transformers": {
            "AutoModelForImageClassification": SimpleNamespace(from_pretrained=answer)
        },
    }
    for name, content in stubs.items():
        stub = ModuleType(name)
        vars(stub).update(content)
        monkeypatch.setitem(sys.modules, name, stub)
    for name in ("timm:net.in1k", "torchvision:net", "hf:org/net"):
        (found,) = json_of(capsys, "evaluate", name, *QUICK)["evaluations"]
        assert len(found["outcomes"]) == 2
    assert asked == [
        ("net.in1k", {"pretrained": True}),
        ("net", {"weights": "DEFAULT"}),
        ("org/net", {"use_safetensors": True}),
    ]
    train = ["train", "at", "--data", "digits", "--model", "timm:net", "--epochs", "1", "--quiet"]
    done(*train, "--out", "run", "--device", "cpu")
    assert asked[-1] == ("net", {"pretrained": False, "num_classes": 10})
    assert isinstance(mrboost.load("run")[0][0], Normalize), "by the data's mean and deviation"


def test_a_function_of_a_file_is_trained_and_fine_tuned(here, weights, capsys) -> None:
    train = ["train", "at", "--data", "digits", "--epochs", "1", "--device", "cpu"]
    safetensors.torch.save_file({f"1.{k}": v for k, v in weights.items()}, "w.safetensors")
    named = ["--model", "mynets.py:linear", "--first", "w.safetensors", "--lr", "1e-9"]
    done(*train, *named, "--out", "tuned")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "next: mrboost evaluate tuned --import=mynets.py:linear",
        "next: mrboost report tuned --import=mynets.py:linear",
    ]
    tuned = mrboost.load("tuned")[0]
    assert torch.allclose(tuned[1][1].weight, weights["weight"], atol=1e-5)
    assert json.loads(Path("tuned/config.json").read_text())["model"] == "mynets.py:linear"
    boosted = ["--first", "tuned", "--model", "mynets.py:linear", "--lr", "1e-9"]
    done(*train[:1], "mrboost", *train[2:], *boosted, "--rounds", "2", "--out", "boosted")
    assert len(mrboost.load("boosted")) == 2
    registry._REGISTRY.pop("mynets.py:linear")
    resumed = ["train", "--resume", "--out", "tuned", "--quiet"]
    assert "--import mynets.py:linear" in error_of(capsys, *resumed)
    done(*resumed, "--import", "mynets.py:linear")
    assert "training needs an nn.Module" in error_of(
        capsys, *train, "--model", "mynets:answers", "--out", "none"
    )
    assert "let it return mrboost.models.Logits(network)" in error_of(
        capsys, *train, "--model", "mynets:Several", "--out", "none"
    )
    assert not Path("none").exists()


def test_grey_levels_are_refused_wherever_images_enter(model, batch) -> None:
    x, y = batch
    attack = mrboost.attacks.FGSM(0.1)
    for images, says in (((255 * x).byte(), "divide uint8 by 255"), (255 * x, "divide by 255")):
        for use in (
            lambda given: model(given),
            lambda given: mrboost.Mixture(list(model))(given),
            lambda given: attack(model, given, y),
            lambda given: mrboost.evaluate(model, given, y, attack, eps=0.1),
        ):
            with pytest.raises(mrboost.InputError, match=says):
                use(images)
    model(2 * x - 0.5)  # methods that explain answers leave the box


def test_answers_that_hold_logits(model, batch) -> None:
    x, y = batch

    class Dictionary(nn.Module):
        def forward(self, images):
            return {"logits": model(images)}

    attack = mrboost.attacks.FGSM(0.1)
    for use in (lambda one: mrboost.evaluate(one, x, y, attack), lambda one: attack(one, x, y)):
        with pytest.raises(mrboost.InputError, match=r"gave dict: give mrboost.models.Logits"):
            use(Dictionary())
    assert torch.equal(attack(Logits(Dictionary()), x, y), attack(model, x, y))


def test_the_results_folder_is_one_json_document(here, capsys) -> None:
    document = json_of(capsys, "evaluate", "mynets:nothing", *QUICK)
    assert document["run"] == "evaluations/digits-mynets-nothing"
    assert json.loads(Path(document["run"], "results.json").read_text())["evaluations"]


SHORT = ["--data", "digits", "--n", "50", "--device", "cpu", "--quiet"]


def test_a_surrogate_gives_the_gradients_of_what_rounds(here, capsys) -> None:
    command = ["evaluate", "mynets.py:rounds", *SHORT, "--attack", "fgsm"]
    (alone,) = json_of(capsys, *command)["evaluations"]
    named = [*command, "--surrogate", "mynets.py:answers"]
    document = json_of(capsys, *named)
    assert document["run"].endswith("digits-mynets-rounds-mynets-answers"), "a folder of its own"
    (found,) = document["evaluations"]
    assert [outcome["attack"] for outcome in found["outcomes"]] == ["clean", "fgsm", "surrogate"]
    assert found["outcomes"][0]["correct"] == alone["outcomes"][0]["correct"]
    assert found["outcomes"][1]["accuracy"] < alone["outcomes"][1]["accuracy"]
    message = error_of(capsys, *named, "--out", "evaluations/digits-mynets-rounds")
    assert "given.surrogate: None -> 'mynets.py:answers'" in message
    done("report", document["run"], "--import", "mynets.py:answers", "--import", "mynets.py:rounds")
    capsys.readouterr()
    done(*named, "--card", "card")
    assert capsys.readouterr().out.splitlines()[-1] == f"kept in {document['run']}"
    assert json.loads(Path("card.json").read_text())["model"]["surrogate"] == "mynets.py:answers"
    page = Path("card.md").read_text().splitlines()
    assert "- **Gradients**: those of a stand-in (BPDA), `mynets.py:answers`" in page
    assert main([*command[:-2], "--verify", "card.json"]) == 2
    assert "mynets.py:answers, here it is none: --surrogate names it" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["of_arrays", "Session"])
def test_a_function_of_arrays_and_a_session_are_evaluated(name: str, here, capsys) -> None:
    command = ["evaluate", f"mynets.py:{name}", *SHORT]
    (found,) = json_of(capsys, *command, "--attack", "rays,square")["evaluations"]
    assert [outcome["attack"] for outcome in found["outcomes"]] == ["clean", "rays", "square"]
    assert found["outcomes"][1]["accuracy"] <= found["outcomes"][0]["accuracy"]
    assert [doubt["check"] for doubt in found["doubts"]] == ["no-gradient"]
    done(*command[:-1], "--attack", "square", "--card", "card")
    said = capsys.readouterr().out
    assert "next: mrboost report" in said
    assert "autoattack" not in said, "it would be refused"
    card = json.loads(Path("card.json").read_text())
    assert (card["model"]["weights"], card["model"]["parameters"]) == (None, None)
    verified = json_of(capsys, *command, "--verify", "card.json", "--n", "5")
    by_name = {check["what"]: check["agrees"] for check in verified["checks"]}
    assert (by_name["weights"], by_name["test images"]) == (None, True)
    message = error_of(capsys, *command)
    assert "fgsm needs gradients, and the model only answers: use square or rays" in message


def test_a_model_from_elsewhere_is_exported_and_asked(here, weights, digits, capsys) -> None:
    """By the folder of its evaluations, whose figures are on its card."""
    safetensors.torch.save_file(
        {f"1.{key}": value for key, value in weights.items()}, "w.safetensors"
    )
    given = ["mynets:linear", "--weights", "w.safetensors", "--normalize", "0.3,0.4"]
    (found,) = json_of(capsys, "evaluate", *given, *QUICK, "--out", "kept")["evaluations"]
    trust = ["--import", "mynets:linear", "--quiet"]
    done("export", "kept", "--to", "m.pt2", *trust)
    card = Path("m.pt2.md").read_text()
    assert f"| fgsm | {found['outcomes'][1]['accuracy']:.2%} |" in card
    assert "Elsewhere: mrboost has only evaluated it." in card
    Image.fromarray((255 * digits.test.images()[0, 0]).byte().numpy()).save("one.png")
    (one,) = json_of(capsys, "predict", "kept", "one.png", *trust)["predictions"]
    x = (255 * digits.test.images()[:1]).byte().float() / 255
    logits = torch.export.load("m.pt2").module()(x)
    assert one["label"] == str(logits.argmax().item())
    assert one["confidence"] == pytest.approx(logits.softmax(dim=1).max().item(), rel=1e-4)
