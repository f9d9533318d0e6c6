"""The SDK door: any training function as a member of a federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from distro_fed.clients import handlers
from distro_fed.clients.data_source import follows_run_paths
from distro_fed.clients.egress_guard import LOG_FILE, EgressGuard
from distro_fed.clients.guard import guarded
from distro_fed.clients.node_overrides import LOCAL_PROCESSES
from distro_fed.clients.process_state import ProcessState
from distro_fed.clients.task import EvaluateResult, LocalTask, RoundInfo, TrainResult
from distro_fed.errors import SettingsError
from distro_fed.settings import RunSettings
from distro_fed.transport.records import Reply, Status, reply_records

if TYPE_CHECKING:
    from torch import nn
    from transformers import Trainer

    from distro_fed.agreement import Agreement
    from distro_fed.model.trainable import Trainable

TrainFunction = Callable[[Any, RoundInfo], TrainResult]
EvaluateFunction = Callable[[Any, RoundInfo], EvaluateResult | float | None]


class PrivateClient:
    """An organisation that takes part with a training loop of its own.

    ::

        client = PrivateClient(load_model, train)
        app = client.app()  # a flwr ClientApp


        def load_model():  # a torch module, or a Trainable to say what of it is exchanged
            return AutoModelForCausalLM.from_pretrained("my-model")


        def train(model, info):  # changes the model in place
            loss = my_loop(model, my_data, steps=info.settings.training.local_steps)
            return TrainResult(num_examples=len(my_data), loss=loss)

    Data never leaves these functions: what is sent is the compressed change of the model's parameters and
    the numbers in the result. What an exception says stays in this machine's log; the server gets its class
    name.

    What happens on failure: a residual or replica file that is gone or damaged is done without. If this
    member lacks versions it says so and is sent them. With ``state_dir=""`` nothing is kept between
    messages, and the server sends all updates since the start (or the full state if that is smaller).

    Parameters
    ----------
    model : callable or torch.nn.Module or Trainable
        The model at its initial values, the same at all members. A callable is called once a process,
        when the first message comes; a deployment starts a new process for every message, so give a
        callable there. All parameters that require gradients are exchanged.
    train : callable
        ``train(model, info) -> TrainResult``.
    evaluate : callable, optional
        ``evaluate(model, info) -> EvaluateResult``, or the loss alone; called when the server asks for
        the held-out loss.
    settings : RunSettings, optional
        By default those of the run (Flower's ``run_config``).
    name : str
        Name of the organisation; by default ``name`` of Flower's node config, or ``client-<partition>``.
    state_dir : str, optional
        Folder for replica and residual; by default the setting ``state-dir``. Empty: stateless.
    base_digest : str
        Identity of what is frozen in the model, if members should be refused whose base differs.
    """

    def __init__(
        self,
        model: Callable[[], nn.Module | Trainable] | nn.Module | Trainable,
        train: TrainFunction,
        evaluate: EvaluateFunction | None = None,
        *,
        settings: RunSettings | None = None,
        name: str = "",
        state_dir: str | None = None,
        base_digest: str = "",
    ) -> None:
        task = _FunctionTask(model, train, evaluate, name, base_digest)
        self._state = ProcessState(task, settings, state_dir)

    @classmethod
    def from_task(cls, task: LocalTask, settings: RunSettings | None = None) -> PrivateClient:
        """A member whose work is described by an object instead of functions."""
        client = cls.__new__(cls)
        client._state = ProcessState(task, settings, None)
        return client

    @classmethod
    def from_trainer(cls, make_trainer: Callable[[], Trainer], **options: Any) -> PrivateClient:
        """A member that trains with a transformers ``Trainer``.

        Parameters
        ----------
        make_trainer : callable
            Builds the Trainer with model, data and arguments; called once a process. In every round it is
            given ``max_steps = local-steps`` and starts with a fresh optimizer.
        **options
            As of the class.
        """
        from distro_fed.clients.trainer_task import TrainerTask

        task = TrainerTask(make_trainer)
        return cls(task.load, task.train, task.evaluate, **options)

    def app(self) -> ClientApp:
        """A Flower ``ClientApp``; more handlers may be added to it.

        An :class:`~distro_fed.clients.egress_guard.EgressGuard` stands before all of them, also before those that are
        added.
        """
        state = self._state
        app = ClientApp(mods=[EgressGuard(state.name, self._egress_log)])
        guard = guarded(state.name, state.facts)

        @app.query("hello")
        @guard
        def hello(message: Message, context: Context) -> Message:
            return Message(reply_records(Reply(Status.OK, state.name(context), 0)), reply_to=message)

        @app.query("secure")
        @guard
        def secure(message: Message, context: Context) -> Message:
            return Message(handlers.answer_light_stages(message, context, state), reply_to=message)

        @app.train()
        @guard
        def train(message: Message, context: Context) -> Message:
            return Message(handlers.train(message, context, state), reply_to=message)

        @app.evaluate()
        @guard
        def evaluate(message: Message, context: Context) -> Message:
            return Message(handlers.evaluate(message, context, state), reply_to=message)

        return app

    def _egress_log(self, context: Context) -> Path | None:
        folder = self._state.folder(context)
        if folder is None or not follows_run_paths(context.node_config):
            return folder and folder / LOG_FILE
        # virtual nodes of a simulation share a state folder
        return folder / "egress" / f"{context.node_config.get('partition-id', context.node_id)}.jsonl"


class _FunctionTask:
    """:class:`LocalTask` out of plain functions."""

    def __init__(
        self,
        model: Callable[[], nn.Module | Trainable] | nn.Module | Trainable,
        train: TrainFunction,
        evaluate: EvaluateFunction | None,
        name: str,
        base_digest: str,
    ) -> None:
        self._model, self._train, self._evaluate = model, train, evaluate
        self._name, self._base_digest = name, base_digest

    def load(self, settings: RunSettings) -> tuple[Trainable, str]:
        from torch import nn

        from distro_fed.model.trainable import Trainable

        del settings
        model = self._model
        if not isinstance(model, nn.Module | Trainable):
            model = model()
        if isinstance(model, Trainable):
            return model, self._base_digest
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        return Trainable(model, trained), self._base_digest

    def name(self, node_config: Mapping[str, object], settings: RunSettings) -> str:
        del settings
        partition = node_config.get("partition-id")
        default = "" if partition is None else f"client-{partition}"
        return self._name or str(node_config.get("name", default))

    def train(self, trainable: Trainable, agreement: Agreement, info: RoundInfo) -> TrainResult:
        del agreement
        if info.node_config.get(LOCAL_PROCESSES, 1) != 1:
            raise SettingsError(
                f"node config {LOCAL_PROCESSES} = {info.node_config[LOCAL_PROCESSES]!r} is for make_client_app(); a "
                "training function or Trainer starts its processes by itself, for instance through accelerate"
            )
        result = self._train(trainable.model, info)
        if not isinstance(result, TrainResult):
            raise SettingsError(
                f"the training function returned a {type(result).__name__}; it must return "
                "TrainResult(num_examples=..., loss=...)"
            )
        return result

    def evaluate(self, trainable: Trainable, info: RoundInfo) -> EvaluateResult | None:
        if self._evaluate is None:
            return None
        result = self._evaluate(trainable.model, info)
        if result is None or isinstance(result, EvaluateResult):
            return result
        return EvaluateResult(loss=float(result), num_examples=1, tokens=1)
