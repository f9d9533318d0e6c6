"""The groups of a run's settings, with what each setting means.

Every field is a key of Flower's ``run_config`` under its own name in kebab-case; :mod:`distro_fed.settings` reads and
checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is fine-tuned."""

    #: hub id, folder, or ``packaged:smollm2-135m``
    base_model: str = "packaged:smollm2-135m"
    #: ``lora`` (an adapter through peft) or ``full`` (the weights themselves)
    mode: str = "lora"
    #: mode ``full``: train the weights of these modules alone, given by the last part of their names, with commas
    #: between, such as ``gate_proj,up_proj,down_proj``; empty: every weight. For an adapter: ``peft.target-modules``
    trained_modules: str = ""
    #: dtype the base model is loaded in: ``float32``, ``bfloat16`` or ``float16``
    dtype: str = "float32"
    #: how members hold the frozen base of an adapter: ``none`` (as ``dtype`` says), ``8bit`` or ``4bit`` (bitsandbytes)
    quantization: str = "none"
    #: allow the hub to be asked for a model or data set that is not on this machine
    allow_download: bool = False
    #: what of a LoRA pair B A is trained: ``both``, ``b`` (A stays as it was drawn, the same everywhere),
    #: ``alternating`` (B in the first update, A in the next) or ``core`` (an r x r matrix between fixed A and B).
    #: The last three are exact under averaging: the mean of the members' products is the product of the means.
    lora_factors: str = "both"
    #: fields of the PEFT configuration, from keys ``peft.*``; ``type`` names the method (default LORA)
    peft: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Where an organisation's text lies. ``node_config`` of the organisation itself wins over these."""

    #: folder with one subfolder for each organisation (simulation: partition i takes the i-th in sorted order)
    data_folder: str = ""
    #: longest sequence in tokens; longer examples are truncated
    max_length: int = 256
    #: use at most so many training examples; 0: all
    max_train_examples: int = 0
    #: use at most so many held-out examples for an evaluation; 0: all
    max_test_examples: int = 0


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Local training; names follow transformers' ``TrainingArguments``."""

    #: optimizer steps of a client in a round (H)
    local_steps: int = 10
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 1
    #: peak learning rate; 0: the preset of mode and compressor
    learning_rate: float = 0.0
    #: ``adamw``, ``sgd`` or ``muon`` (AdamW for embeddings, head and vectors)
    optim: str = "adamw"
    #: ``fresh``: a new optimizer in every round; ``kept``: its moments stay at the client from round to round, in
    #: ``state-dir`` (not with ``subspace``, ``tracking`` and ``tracking-topk``, whose coefficients start at 0 in every
    #: round)
    optimizer_state: str = "fresh"
    #: momentum of ``sgd`` and ``muon`` (published with 0.95)
    momentum: float = 0.0
    #: over the whole run: ``constant``, ``linear`` or ``cosine`` decay
    lr_scheduler_type: str = "linear"
    #: optimizer steps of linear warm-up at the start of the run
    warmup_steps: int = 0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    #: gradients are clipped to this norm; 0: not clipped
    max_grad_norm: float = 1.0
    #: autocast to bfloat16
    bf16: bool = False
    gradient_checkpointing: bool = False
    #: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``
    device: str = "auto"
    #: CPU threads of one client process; 0: torch's own choice
    threads: int = 0


@dataclass(frozen=True, slots=True)
class CompressionSettings:
    """How updates are compressed, up and down."""

    #: ``auto``, ``dct-topk``, ``topk``, ``quantized``, ``subspace``, ``lowrank``, ``tracking``, ``tracking-topk`` or
    #: ``dense``
    compressor: str = "auto"
    #: share of coefficients that ``topk``, ``dct-topk`` and ``tracking-topk`` send, 0 < density <= 1; 0: preset
    density: float = 0.0
    #: where ``topk`` looks for the largest: ``global`` (one threshold for the model) or ``chunk`` (a quota for each
    #: 64 x 64 values of a matrix)
    selection: str = "global"
    #: bits a value in ``quantized``, ``subspace``, ``lowrank`` and ``tracking``, 1 to 8; 0: preset
    bits: int = 0
    #: bits of a selected value in ``topk``, ``dct-topk`` and ``tracking-topk``: 1 (the sign) or 2 (one of two
    #: magnitudes too)
    value_bits: int = 1
    #: rank of the basis in ``subspace``, ``lowrank``, ``tracking`` and ``tracking-topk``; 0: preset
    rank: int = 0
    #: rank of the ``subspace`` in the last round, reached in equal steps; 0: the same in all rounds
    final_rank: int = 0
    #: rounds that share one basis of ``subspace``
    basis_rounds: int = 1
    #: what the updates so far count beside the next one in the basis of ``tracking`` and ``tracking-topk``: 0 (not at
    #: all) to 1 (all alike), rounded to a 64th
    basis_decay: float = 1.0
    #: number format of ``dense``: ``float32``, ``bfloat16`` or ``float16``
    dense_dtype: str = "float32"
    #: scales of ``quantized``, ``subspace``, ``lowrank`` and ``tracking``: ``own`` (each member's update has its own),
    #: ``common`` (those of a round are announced by the server and the same for all) or ``auto``: ``common`` with
    #: ``secure-aggregation``, which gives the exact mean only so, else ``own``
    scales: str = "auto"
    #: the common scales of the first round: ``measured`` (none yet: each member's own), ``adamw`` (by a rule that fits
    #: this package's own training, not a training function of yours), or a number for all tensors
    initial_scale: str = "measured"
    #: keep at the client what was not sent and add it to the next update
    error_feedback: bool = False
    #: what is kept of that residual from one round to the next, 0 to 1
    error_feedback_decay: float = 1.0
    #: the same for the server's aggregated update
    server_residual: bool = False
    #: density of the aggregated update; 0: as the uplink
    downlink_density: float = 0.0
    #: bits of the aggregated update; 0: as the uplink
    downlink_bits: int = 0


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Secure aggregation: the server learns the sum of the updates and nothing else about any of them."""

    #: updates are summed under masks; needs the compressor ``quantized``, ``subspace``, ``lowrank``, ``tracking`` or
    #: ``dense``, which takes 16 bits a value there
    secure_aggregation: bool = False
    #: server: folder with ``roster.toml`` and ``policy.toml``. In a simulation also one subfolder a member, with
    #: ``identity.toml`` besides. A deployed member takes ``secure-folder`` from its node config only.
    secure_folder: str = ""
    #: training examples that weigh 1 where the policy has ``weights = ["masked"]``; a member weighs 1 to 15
    weight_unit: int = 100
    #: seconds to wait for a member's answer in the stages of the protocol that need no training; 0: as long as for a
    #: round of training
    stage_timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class FederationSettings:
    """Who takes part; words of Flower's FedAvg where it has them."""

    num_server_rounds: int = 10
    fraction_train: float = 1.0
    min_train_nodes: int = 2
    min_available_nodes: int = 2
    #: share of the sampled nodes whose valid replies a round needs; below, the round is skipped
    quorum: float = 0.5
    #: seconds until a round is closed without those that have not answered; 0: sized by the run, from the time that
    #: training and transfer took in the round before
    round_timeout: float = 3600.0
    #: seconds to wait for ``min_available_nodes`` at the start
    start_timeout: float = 300.0
    #: metric that weighs a client's update; empty: every client counts the same
    weighted_by: str = "num-examples"
    #: ``mean``: weighted mean over all members; ``contributors``: at every position the mean over those that sent it
    aggregation: str = "mean"
    #: the aggregated update is multiplied by it
    outer_learning_rate: float = 1.0
    #: momentum of the aggregated update, kept by the server (0: no state), and whether it looks ahead (DiLoCo)
    outer_momentum: float = 0.0
    outer_nesterov: bool = True
    #: every so many rounds clients evaluate the replica they are about to train; 0: only first and last
    evaluate_every: int = 1


@dataclass(frozen=True, slots=True)
class ReportingSettings:
    """Who else is told how the run goes. The server app tells them."""

    #: ``none``, ``tensorboard``, ``wandb``, ``mlflow``, or several of them with commas between
    report_to: str = "none"
    #: TCP port that serves metrics for Prometheus while the run goes on; 0: none
    metrics_port: int = 0
    #: address that it listens on; others than loopback show members' names and losses to whoever reaches the port
    metrics_host: str = "127.0.0.1"

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names in ``report_to``, each once; nothing for ``none``."""
        names = dict.fromkeys(name.strip() for name in self.report_to.split(","))
        return () if self.report_to == "none" else tuple(names)
