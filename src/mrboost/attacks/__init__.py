r"""Attacks: ``attack(model, x, y)`` gives adversarial images of the shape and type of ``x``.

They lie in a ball around ``x`` and in [0, 1]. A model is any function of images to logits; it is
attacked in eval mode, and its mode, weights, gradients and the global random state are left as they
were found. Of numpy arrays an attack gives a numpy array.

With ``targets=``, a label for each image, ``PGD``, ``APGD`` and ``FAB`` look for images that the
model takes for that label: ``PGD(eps)(model, x, y, targets=targets)``. Where their classes say
``targets``, a number, the runs aim at so many likely labels, and any mistake is a success.

**An attack by gradients is a loss, a start, a step and a projection**::

    x_adv = threat.project(x + start(x, threat, generator), x)
    for _ in range(steps):
        gradient = (gradient of loss(model(x_adv), y) in x_adv)
        x_adv = threat.project(x_adv + threat.step(gradient, step_size), x)

Each of the four is a value: losses are in ``mrboost.losses``, starts and the loop itself
(``ascend``) in ``pgd.py``, and a ball knows its steps and its projection (``mrboost.threat``).
``PGD``, ``FGSM`` and ``CW`` are choices of them.

**A search** (``APGD``, ``FAB``, ``Square``, ``RayS``) stops for an image as soon as it is
misclassified. Its state is a dictionary of tensors with one row for each image, and ``step`` maps
it to the next, so that images at different iterations share a batch, and others take the rows of
those that are done (``survivors.py``). ``AutoAttack`` is four searches in turn, each on the images
that the last ones left standing. They run on a fast copy of the model; what they find is judged by
the model itself.

**An attack of one's own** is a function, or a subclass of ``Attack`` that declares what it is::

    @dataclass(frozen=True)
    class Noise(Attack):
        eps: float = 8 / 255
        norm: str = "Linf"
        uses_gradients = False

        def __call__(self, model, x, y, *, generator=None):
            ball = threat.ball(self.norm, self.eps)
            return ball.project(x + ball.uniform(x, generator), x)

    mrboost.evaluate(model, x, y, Noise(8 / 255))

===================  ==================================================================
``base.py``          the base classes; numpy arrays in, numpy arrays out
``model.py``         the model: what is refused, eval mode and back, its gradients
``pgd.py``           FGSM, PGD, CW
``apgd.py``          the searches
``fab.py``
``square.py``
``rays.py``
``survivors.py``     what searches share: which image is in which row of the batch, and when;
                     what is known of each image, judged by the model
``targets.py``       which labels they aim at first
``autoattack.py``    several searches in turn: ``AutoAttack``, and ``Quick``
``arc.py``           the attack on randomised classifiers
``surrogates.py``    a model with the gradients of another one, or the mean of its parts' answers
``adaptive.py``      the attacks that fit a model
``registry.py``      attacks by name
``others.py``        attacks of foolbox and torchattacks
===================  ==================================================================
"""

from mrboost.ensemble import Classifier

from .apgd import APGD
from .autoattack import AutoAttack, Quick
from .base import Attack, as_attack
from .fab import FAB
from .model import attacked
from .pgd import CW, FGSM, PGD, FromClean, Gaussian, Start, Uniform, ascend
from .rays import RayS
from .registry import named, register
from .square import Square
from .surrogates import BPDA, Transfer
from .survivors import Search

__all__ = ["APGD", "BPDA", "CW", "FAB", "FGSM", "PGD", "Attack", "AutoAttack", "Classifier"]
__all__ += ["FromClean", "Gaussian", "Quick", "RayS", "Search", "Square", "Start", "Transfer"]
__all__ += ["Uniform", "as_attack", "ascend", "attacked", "named", "register"]
