"""The server app out of the box: settings in, a fine-tuned model and a report out."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from distro_fed.compression.configured import configured_compressors
from distro_fed.errors import FederationError, SettingsError
from distro_fed.model.card import CardFacts, OrganisationFacts, write_model_card
from distro_fed.model.configured import load_trainable
from distro_fed.model.export import save_adapter, save_full_model
from distro_fed.reporting.events import EventWriter
from distro_fed.reporting.html import write_html
from distro_fed.reporting.observers import observers
from distro_fed.reporting.report import RunReport, build_report
from distro_fed.reporting.run_folder import CHECKPOINT_FOLDER, EVENTS_FILE, HTML_FILE, MODEL_FOLDER, REPORT_FILE
from distro_fed.secure_aggregation.member_files import POLICY_FILE, ROSTER_FILE
from distro_fed.secure_aggregation.policy import read_policy
from distro_fed.secure_aggregation.roster import read_roster
from distro_fed.settings import RunSettings
from distro_fed.strategies.checkpoint import Checkpoint, read_checkpoint
from distro_fed.strategies.common_scales import ScaleRule
from distro_fed.strategies.distro import DistroStrategy
from distro_fed.strategies.resume import Saver, check_settings
from distro_fed.strategies.round_loop import run_rounds
from distro_fed.strategies.secure_distro import SecureDistroStrategy

log = logging.getLogger("flwr")


def strategy_from_settings(
    settings: RunSettings,
    base_digest: str = "",
    events: EventWriter | None = None,
    saver: Saver | None = None,
    resume_from: Checkpoint | None = None,
) -> DistroStrategy:
    """The strategy that a run's settings describe."""
    uplink, downlink = configured_compressors(settings)
    federation = settings.federation
    strategy: Callable[..., DistroStrategy] = DistroStrategy
    if settings.security.secure_aggregation:
        strategy = partial(SecureDistroStrategy, **_secure_options(settings))
    return strategy(
        fraction_train=federation.fraction_train,
        min_train_nodes=federation.min_train_nodes,
        min_evaluate_nodes=1,
        min_available_nodes=federation.min_available_nodes,
        weighted_by_key=federation.weighted_by or None,
        compressor=uplink,
        downlink_compressor=downlink,
        seed=settings.seed,
        base_digest=base_digest,
        quorum=federation.quorum,
        round_timeout=federation.round_timeout,
        start_timeout=federation.start_timeout,
        aggregation=federation.aggregation,
        outer_learning_rate=federation.outer_learning_rate,
        outer_momentum=federation.outer_momentum,
        outer_nesterov=federation.outer_nesterov,
        server_residual=settings.compression.server_residual,
        evaluate_every=federation.evaluate_every,
        scale_rule=_scale_rule(settings),
        events=events,
        saver=saver,
        resume_from=resume_from,
    )


def _scale_rule(settings: RunSettings) -> ScaleRule | None:
    if settings.compression.scales != "common":
        return None
    initial = settings.compression.initial_scale
    return ScaleRule(settings.training, initial if initial in ("measured", "adamw") else float(initial))


def _secure_options(settings: RunSettings) -> dict[str, Any]:
    """The server's copies of roster and policy, and what members are held to.

    Raises
    ------
    SettingsError, SecureAggregationError
    """
    security = settings.security
    if not security.secure_folder:
        raise SettingsError(
            "secure-aggregation = true needs secure-folder: a folder with roster.toml and policy.toml, the same as the "
            "members hold"
        )
    folder = Path(security.secure_folder).expanduser()
    return {
        "roster": read_roster(folder / ROSTER_FILE),
        "policy": read_policy(folder / POLICY_FILE),
        "settings": settings,
        "stage_timeout": security.stage_timeout,
    }


def run_server(
    grid: Grid,
    settings: RunSettings,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
) -> Result:
    """Run a federation from its base model to its report; the body of a ``ServerApp``'s main.

    Writes into the run's folder (``run-dir``, or a new ``runs/<run-name>``): ``events.jsonl`` while it runs, and at
    the end ``model/``, ``report.json`` and ``report.html``. If the run breaks off, what it has reached is saved as
    ``model-unfinished/``; and from ``checkpoint/``, which is written after every round, another run goes on with it
    (setting ``resume-from-checkpoint``), also if this process is killed.

    Parameters
    ----------
    grid : Grid
    settings : RunSettings
    evaluate_fn : callable, optional
        Evaluation on the server, before the first and after each round, as in Flower's strategies.

    Raises
    ------
    DistroFedError
        Of any kind; :class:`~distro_fed.errors.FederationError` if no round had enough valid replies. The event file
        ends with ``run_failed`` then.
    """
    settings = settings.completed()
    folder, saved = _run_folder(settings), None
    if settings.resume_from_checkpoint:
        saved = read_checkpoint(folder / CHECKPOINT_FOLDER)
        check_settings(saved, settings.flat())
    with observers(settings, folder) as listeners, EventWriter(folder / EVENTS_FILE, listeners) as events:
        try:
            return _run(grid, settings, folder, events, saved, evaluate_fn)
        except Exception as error:
            events.write("run_failed", error=f"{type(error).__name__}: {error}")
            raise


def _run_folder(settings: RunSettings) -> Path:
    """The run's folder; without ``run-dir`` a new one, so that no run overwrites another."""
    if settings.resume_from_checkpoint:
        return Path(settings.resume_from_checkpoint)
    if settings.run_dir:
        taken = [name for name in (EVENTS_FILE, MODEL_FOLDER, REPORT_FILE) if (Path(settings.run_dir) / name).exists()]
        if taken:
            raise SettingsError(
                f"run-dir {settings.run_dir!r} holds another run ({taken[0]}); name a new folder, or go on with that "
                f"run by resume-from-checkpoint = {settings.run_dir!r}"
            )
        return Path(settings.run_dir)
    folder, number = Path("runs") / settings.run_name, 2
    while folder.exists():
        folder, number = Path("runs") / f"{settings.run_name}-{number}", number + 1
    return folder


def _run(
    grid: Grid,
    settings: RunSettings,
    folder: Path,
    events: EventWriter,
    saved: Checkpoint | None,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
) -> Result:
    loaded = load_trainable(settings)
    parameters, initial = loaded.parameters, loaded.trainable
    every, saver = settings.save_rounds, None
    if every:
        saver = Saver(folder / CHECKPOINT_FOLDER, every, settings.flat())
    strategy = strategy_from_settings(settings, loaded.base_digest, events, saver, saved)
    rounds = settings.federation.num_server_rounds
    if saved is None:
        events.write(
            "run_started", name=settings.run_name, mode=settings.model.mode, compressor=strategy.compressor.describe(),
            rounds=rounds, local_steps=settings.training.local_steps, parameters=parameters,
            trainable=initial.layout.numel,
        )  # fmt: skip
    strategy.prepare(initial, grid.run.run_id, rounds)
    del loaded, initial  # the replica is all the server needs while it runs
    model_folder, unfinished = folder / MODEL_FOLDER, folder / f"{MODEL_FOLDER}-unfinished"
    try:
        result = run_rounds(strategy, grid, rounds, evaluate_fn=evaluate_fn)
        if strategy.replica.version == 0:
            reasons = {item.reason for record in strategy.progress.history() for item in record.left_out}
            raise FederationError(
                f"none of {rounds} rounds had enough valid replies; reasons: "
                f"{'; '.join(sorted(reasons)) or 'no replies'}"
            )
        _export(strategy, model_folder, settings)
    except BaseException:
        if strategy.replica.version > 0:
            _export(strategy, unfinished, settings)
        raise
    shutil.rmtree(unfinished, ignore_errors=True)
    report = _report(strategy, settings, parameters, model_folder)
    write_model_card(model_folder, _card_facts(strategy, report, settings))
    report.write_json(folder / REPORT_FILE)
    try:
        write_html(report, folder / HTML_FILE)
    except Exception:  # a page is not worth a run
        log.exception("the report page could not be drawn; %s has all figures", folder / REPORT_FILE)
    strategy.progress.traffic()
    events.write("run_finished", seconds=report.seconds)
    log.info("model: %s | report: %s", model_folder, folder / HTML_FILE)
    return result


def _report(strategy: DistroStrategy, settings: RunSettings, parameters: int, model_folder: Path) -> RunReport:
    progress = strategy.progress
    before = progress.held_out.get(0, {})
    after = progress.held_out.get(settings.federation.num_server_rounds, {})
    both = before.keys() & after.keys()  # means over different members would not compare
    return build_report(
        name=settings.run_name,
        mode=settings.model.mode,
        compressor=strategy.compressor.describe(),
        local_steps=settings.training.local_steps,
        clients=sorted(set(strategy.members.names.values())),
        ledger=strategy.ledger,
        history=progress.history(),
        loss_before={name: before[name] for name in sorted(both)},
        loss_after={name: after[name] for name in sorted(both)},
        parameters=parameters,
        trainable_parameters=strategy.replica.agreement.layout.numel,
        learning_rate=settings.training.learning_rate,
        seed=settings.seed,
        seconds=progress.seconds,
        model_path=str(model_folder),
        settings=settings.flat(),
        exchanges=strategy.courier.exchanges,
        drifts=progress.drifts,
        late_replies=progress.late_replies,
        resumed=progress.resumes,
    )


def _export(strategy: DistroStrategy, folder: Path, settings: RunSettings) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of a run that broke off and was resumed
    loaded = load_trainable(settings)
    loaded.trainable.write(strategy.replica.values)
    model: Any = loaded.trainable.model
    if settings.model.mode == "full":
        save_full_model(folder, model, loaded.tokenizer)
    else:
        save_adapter(folder, model, base_name=settings.model.base_model, tokenizer=loaded.tokenizer)


def _card_facts(strategy: DistroStrategy, report: RunReport, settings: RunSettings) -> CardFacts:
    up, down = report.mean_bytes()
    return CardFacts(
        base_model=settings.model.base_model,
        base_digest=strategy.base_digest,
        mode=settings.model.mode,
        compressor=report.compressor,
        rounds=sum(not record.skipped for record in report.history),
        local_steps=report.local_steps,
        organisations=[
            OrganisationFacts(
                name, int(shape.get("num-examples", 0)), int(shape.get("held-out-examples", 0)),
                strategy.members.columns.get(name, ()),
            )
            for name, shape in sorted(strategy.members.data_shapes.items())
        ],
        bytes_up=round(up),
        bytes_down=round(down),
        loss_before=_known(report.loss_before.per_client),
        loss_after=_known(report.loss_after.per_client),
        trained_modules=settings.model.trained_modules,
    )  # fmt: skip


def _known(losses: dict[str, float | None]) -> dict[str, float]:
    return {name: loss for name, loss in losses.items() if loss is not None}
