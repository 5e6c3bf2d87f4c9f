"""The templates of Transformer-VQ language models and their counterparts with quadratic attention."""

from typing import Literal

import fiddle as fdl

from layers.attention.gated import FullAttention, GatedHeads
from layers.attention.quantizer import VectorQuantizer
from layers.attention.vq import VQAttention
from layers.block import Chain, ResidualBlock
from layers.embedding import Embedding, Unembedding
from layers.errors import UsageError
from layers.norm import RMSNorm
from layers.positions.embeddings import ScaledSinusoidalPositions
from layers.specs import P, Specs
from layers.weights.initializers import FanIn, Normal
from registry.templates.data_sources import Data
from registry.templates.decoder import DecoderLm
from registry.values import Positive, PositiveFloat
from tasks.inputs.datasets.enwik8 import Enwik8
from tasks.inputs.datasets.imagenet64 import ImageNet64
from tasks.inputs.rows import TokensInput
from tasks.inputs.sources.tfds import Tfds
from tasks.inputs.token_cache import CachedDocuments
from tasks.vocabularies.vocabulary import ByteVocabulary


class VQLm(DecoderLm):
    """Transformer-VQ (Lingle 2023): linear-time attention over quantized keys, exact over the complete past.

    A layer is two gated attention units of one head each ("shga"), or multi-query or multi-head attention with a
    feed-forward layer ("mqa", "mha"). ATTENTION = "full" is the counterpart with quadratic attention: the same weights
    without codebooks, unquantized keys, relative positions at every distance.

    The mesh has three axes: rows are split over "data", positions over "sequence" (blocks of one row on different
    devices, with merged caches), values, gates and hidden units over "model". Matrices and the optimizer's slots are
    split over both "data" and "model". DROPOUT applies to the outputs of residual branches.
    """

    MESH_AXES = ("data", "sequence", "model")
    DEVICE_MESH_SHAPE = (-1, 1, 1)

    # Model
    ATTENTION: Literal["vq", "full"] = "vq"  # vq is linear-time, full is quadratic
    HEADS: Literal["shga", "mqa", "mha"] = "shga"  # gated single-head units, multi-query or multi-head
    NUM_HEADS = 1  # of shga; mqa and mha have MODEL_DIM / KEY_DIM
    KEY_DIM: Positive = 128  # size of a key
    VALUE_DIM: Positive | None = None  # per head; None is 2 MODEL_DIM / NUM_HEADS for shga, KEY_DIM for mqa and mha
    VOCAB_SIZE = 259
    ACTIVATION = "squared_relu"
    POSITIONS: Literal["none", "scaled_sinusoidal"] = "none"  # added to embeddings, in addition to relative ones
    WAVELENGTH: PositiveFloat = 100_000.0  # longest wavelength of the sines, over 2 pi
    NORM_WEIGHTS: bool = False  # norms with scale and bias, as in the paper's first code
    FINAL_NORM: bool = True  # normalize the input of the head
    TIE_EMBEDDINGS = True
    LOGITS_SCALE: float = 1.0  # factor on the logits

    BLOCK_LEN: Positive = 512  # tokens processed at once; does not change outputs
    MEMORY_LEN: Positive | None = None  # last keys attended individually, largest distinct distance; None: BLOCK_LEN
    NUM_CODES: Positive = 512  # codewords per codebook
    CACHE: bool = True  # attend to older keys through per-code means; false ignores them
    GRADIENT_THROUGH_CACHE: bool = True  # pass gradients to keys and values before the block
    REDUCTION: Literal["serial", "matmul", "assoc_scan", "sum", "scan"] = "serial"  # how caches of blocks are summed
    COMMIT_WEIGHT: float = 1e-4  # factor of the commitment loss
    CODEBOOK_DECAY: float = 0.99  # share of the codebook that an update keeps
    CODEBOOK_INFLATION: float = 1.0  # factor on a batch's counts; the reference has devices times blocks
    RESEED_BELOW: float | None = None  # reset codes with a smaller running count to a random key of the batch
    CODEBOOK_METRICS: bool = False  # log distances and angles of codewords too

    EMBEDDING_DROPOUT = 0.0
    SINUSOID_DROPOUT: float = 0.0  # dropout rate on the sines of distances; one mask per row
    HIDDEN_DROPOUT = 0.0
    LAYER_DROPOUT: float = 0.0  # rate of skipping a residual branch; one decision per row

    # Optimization
    BETA2 = 0.98
    ADAM_EPSILON = 1e-9
    WEIGHT_DECAY = 0.0
    DECAY_SCALE = "none"  # the paper's decay does not depend on the learning rate
    CLIP_NORM = None
    LOSS_NORMALIZER = "positions"

    # Data
    DATA: Literal[Data, "enwik8", "pg19", "imagenet64"] = "text"
    DTYPE = "bfloat16"
    REMAT = "full"

    # Placement
    WEIGHTS: Specs = Specs(
        embedding_vm=P(None, "model"),
        query_mnd=P("data", None, None),
        key_mkd=P("data", None, None),
        value_mkf=P("data", None, "model"),
        attention_out_nfm=P(None, "model", "data"),
        distance_mkd=P("data", None, None),
        content_bias_nd=P(None, None),
        position_bias_nd=P(None, None),
    )
    OPTIONAL_WEIGHTS: Specs = Specs(
        gate_mnf=P("data", None, "model"),
        codebook_sum_kcd=P(None, None, None),
        codebook_count_kc=P(None, None),
        unembedding_mv=P("model", None),
        unembedding_bias_v=P(None),
        ffn_in_mf=P("data", "model"),
        ffn_out_fm=P("model", "data"),
        norm_scale_m=P(None),
        norm_bias_m=P(None),
        position_scale_=P(),
    )
    ACTIVATIONS: Specs = Specs(
        tokens_bs=P("data", "sequence"),
        residual_bsm=P("data", "sequence", None),
        value_bskf=P("data", "sequence", None, "model"),
        gate_bsnf=P("data", "sequence", None, "model"),
        mixed_bsnf=P("data", "sequence", None, "model"),
        cache_brkcf=P("data", "sequence", None, None, "model"),
        logits_bsv=P("data", "sequence", None),
    )

    @classmethod
    def Smoke(cls):
        heads = {"NUM_HEADS": 1, "KEY_DIM": 8, "VALUE_DIM": None}
        quantized = {"BLOCK_LEN": 4, "MEMORY_LEN": None, "NUM_CODES": 16, "CODEBOOK_DECAY": 0.9}
        dropped = dict.fromkeys(("DROPOUT", "EMBEDDING_DROPOUT", "SINUSOID_DROPOUT", "LAYER_DROPOUT"), 0.01)
        learned = {"LEARNING_RATE": 2e-2 if cls.OPTIMIZER == "adafactor" else 5e-3, "DTYPE": "float32"}
        data = {
            "DATA": "text",
            "SEQIO_TASK": None,
            "DATA_PATH": None,
            "TBPTT_LEN": None if cls.TBPTT_LEN is None else 16,
        }
        parts = {name: 0.0 if getattr(cls, name) == 0 else rate for name, rate in dropped.items()}
        sizes = {"MODEL_DIM": 32, "VOCAB_SIZE": 264}
        return super().Smoke().derive(**heads, **quantized, **parts, **learned, **data, **sizes)

    @classmethod
    def grows_with_width(cls):
        return ("FFN_DIM", "VALUE_DIM") if cls.HEADS == "shga" else ("FFN_DIM",)

    @property
    def bytes_vocabulary(self) -> ByteVocabulary:
        """The byte vocabulary, with three special tokens if the data are the paper's."""
        return ByteVocabulary(special_tokens=0 if self.DATA == "text" else 3)

    def train_input(self) -> fdl.Config:
        if self.DATA not in ("enwik8", "pg19", "imagenet64"):
            return super().train_input()
        sizes = {"batch_size": self.BATCH_SIZE, "seq_len": self.SEQ_LEN, "seed": self.SEED}
        rows = {"rows": "restart" if self.ROWS == "cut" else self.ROWS, "document_masks": self.DOCUMENT_MASKS}
        return fdl.Config(TokensInput, source=self.paper_source(), **rows, **sizes)

    def paper_source(self) -> fdl.Config:
        """Returns the token source of a data set of the paper: bytes, or subwords of PG-19's books."""
        if self.VOCABULARY != "bytes" and self.DATA != "pg19":
            raise UsageError(f"VOCABULARY must be bytes with DATA = {self.DATA} (got {self.VOCABULARY}). Remove it.")
        if self.DATA == "enwik8":
            return fdl.Config(Enwik8, path=self.DATA_PATH)
        if self.DATA == "pg19":
            documents = fdl.Config(Tfds, name="pg19", data_dir=self.DATA_PATH, column="book_text")
        else:
            documents = fdl.Config(ImageNet64, path=self.DATA_PATH)
        return fdl.Config(
            CachedDocuments,
            source=documents,
            vocabulary=self.vocabulary(),
            stop_tokens=self.DATA == "pg19",  # an image has no end token
            folder=self.CACHE_DIR,
        )

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        if self.HEADS == "shga":
            return 1 if self.NUM_HEADS is None else self.NUM_HEADS
        if self.KEY_DIM < 1 or self.MODEL_DIM % self.KEY_DIM:
            raise UsageError(f"KEY_DIM must divide MODEL_DIM = {self.MODEL_DIM} (got {self.KEY_DIM}).")
        return self.MODEL_DIM // self.KEY_DIM

    @property
    def value_dim(self) -> int:
        """Size of one head's values."""
        if self.VALUE_DIM is not None:
            return self.VALUE_DIM
        if self.HEADS != "shga":
            return self.KEY_DIM
        if self.num_heads < 1 or 2 * self.MODEL_DIM % self.num_heads:
            raise UsageError(f"NUM_HEADS must divide 2 * MODEL_DIM = {2 * self.MODEL_DIM} (got {self.NUM_HEADS}).")
        return 2 * self.MODEL_DIM // self.num_heads

    @property
    def branch_scale(self) -> float:
        return 1.0

    def model(self) -> fdl.Config:
        config = super().model()
        common = {"vocab_size": self.vocab_size, "model_dim": self.MODEL_DIM, "dtype": self.DTYPE}
        scale = self.LOGITS_SCALE / (self.parametrization.multiple if self.TIE_EMBEDDINGS else 1)
        init = fdl.Config(Normal, stddev=1.0)
        output = {"use_bias": self.USE_BIAS, "logits_scale": scale}
        config.embedding = self.layer(Embedding, initializer=init, **common, **(output if self.TIE_EMBEDDINGS else {}))
        if not self.TIE_EMBEDDINGS:
            config.head = self.layer(Unembedding, initializer=self.unembedding_initializer(), **common, **output)
        config.final_norm = self.norm() if self.FINAL_NORM else None
        return config

    def position_embedding(self) -> fdl.Config | None:
        if self.POSITIONS == "none":
            return None
        return self.layer(ScaledSinusoidalPositions, model_dim=self.MODEL_DIM, base=self.WAVELENGTH)

    def norm(self) -> fdl.Config:
        return self.layer(RMSNorm, use_scale=self.NORM_WEIGHTS, use_bias=self.NORM_WEIGHTS)

    def block(self) -> fdl.Config:
        if self.HEADS == "shga":
            return fdl.Config(Chain, blocks=(self.unit(), self.unit()))
        config = self.unit()
        config.ffn_norm, config.ffn = self.norm(), self.ffn()
        return config

    def unit(self) -> fdl.Config:
        """Returns the config of one attention with its residual."""
        return fdl.Config(
            ResidualBlock,
            activations=self.ACTIVATIONS.of(ResidualBlock),
            mixer_norm=self.norm(),
            mixer=self.mixer(),
            ffn_norm=None,
            ffn=None,
            dropout_rate=self.DROPOUT,
            layer_drop_rate=self.LAYER_DROPOUT,
        )

    def ffn(self) -> fdl.Config:
        config = super().ffn()
        width = 4 if self.HEADS == "mha" else 5  # about as many weights as two gated units
        config.hidden_dim = width * self.MODEL_DIM if self.FFN_DIM is None else self.FFN_DIM
        config.use_bias = False
        return config

    def mixer(self) -> fdl.Config:
        base = {"ATTENTION_WINDOW": None, "QK_NORM": "none", "NORM": "rms", "NORM_EPSILON": None}
        for knob, unset in base.items():
            if getattr(self, knob) != unset:
                raise UsageError(f"{knob} = {getattr(self, knob)} has no effect in this family. Leave it at {unset}.")
        if self.ATTENTION_SCALE is not None:
            raise UsageError("ATTENTION_SCALE has no effect in this family, which scales by KEY_DIM^-1/2. Remove it.")
        kv_heads = 1 if self.HEADS == "mqa" else self.num_heads
        common = {
            "activations": self.ACTIVATIONS.of(GatedHeads),
            "model_dim": self.MODEL_DIM,
            "num_heads": self.num_heads,
            "num_kv_heads": kv_heads,
            "key_dim": self.KEY_DIM,
            "value_dim": self.value_dim,
            "gated": self.HEADS == "shga",
            "initializer": fdl.Config(FanIn),
            "wavelength": self.WAVELENGTH,
            "sinusoid_dropout": self.SINUSOID_DROPOUT,
            "dtype": self.DTYPE,
        }
        if self.ATTENTION == "full":
            return self.layer(FullAttention, query_chunk=self.BLOCK_LEN, **common)
        return self.layer(
            VQAttention,
            quantizer=self.quantizer(kv_heads),
            block_length=self.BLOCK_LEN,
            memory_length=self.BLOCK_LEN if self.MEMORY_LEN is None else self.MEMORY_LEN,
            cache=self.CACHE,
            gradient_through_cache=self.GRADIENT_THROUGH_CACHE,
            reduction=self.REDUCTION,
            **common,
        )

    def quantizer(self, heads: int) -> fdl.Config:
        """Returns the config of the codebooks of one attention."""
        return self.layer(
            VectorQuantizer,
            num_heads=heads,
            num_codes=self.NUM_CODES,
            key_dim=self.KEY_DIM,
            initializer=fdl.Config(FanIn),
            commit_weight=self.COMMIT_WEIGHT,
            decay=self.CODEBOOK_DECAY,
            inflation=self.CODEBOOK_INFLATION,
            reseed_below=self.RESEED_BELOW,
            detailed_metrics=self.CODEBOOK_METRICS,
        )


class VQMultiHeadLm(VQLm):
    """Multi-head attention with a feed-forward layer: queries, keys, values, scores split over "model" by heads."""

    HEADS = "mha"
    WEIGHTS: Specs = VQLm.WEIGHTS | Specs(
        query_mnd=P("data", "model", None),
        key_mkd=P("data", "model", None),
        value_mkf=P("data", "model", None),
        attention_out_nfm=P("model", None, "data"),
        distance_mkd=P("data", "model", None),
        content_bias_nd=P("model", None),
        position_bias_nd=P("model", None),
        ffn_in_mf=P("data", "model"),
        ffn_out_fm=P("model", "data"),
    )
    OPTIONAL_WEIGHTS: Specs = VQLm.OPTIONAL_WEIGHTS | Specs(
        codebook_sum_kcd=P("model", None, None),
        codebook_count_kc=P("model", None),
    )
    ACTIVATIONS: Specs = VQLm.ACTIVATIONS | Specs(
        query_bsnd=P("data", "sequence", "model", None),
        key_bskd=P("data", "sequence", "model", None),
        value_bskf=P("data", "sequence", "model", None),
        mixed_bsnf=P("data", "sequence", "model", None),
        scores_brkglt=P("data", "sequence", "model", None, None, None),
        cache_brkcf=P("data", "sequence", "model", None, None),
        hidden_bsf=P("data", "sequence", "model"),
    )

    @classmethod
    def Smoke(cls):
        return super().Smoke().derive(KEY_DIM=4, FFN_DIM=64)


class VQMultiQueryLm(VQMultiHeadLm):
    """Multi-query attention with a feed-forward layer: only queries and scores are split over "model"."""

    HEADS = "mqa"
    WEIGHTS: Specs = VQMultiHeadLm.WEIGHTS | Specs(
        key_mkd=P("data", None, None), value_mkf=P("data", None, None), distance_mkd=P("data", None, None)
    )
    OPTIONAL_WEIGHTS: Specs = VQMultiHeadLm.OPTIONAL_WEIGHTS | Specs(
        codebook_sum_kcd=P(None, None, None), codebook_count_kc=P(None, None)
    )
    ACTIVATIONS: Specs = VQMultiHeadLm.ACTIVATIONS | Specs(
        key_bskd=P("data", "sequence", None, None),
        value_bskf=P("data", "sequence", None, None),
        scores_brkglt=P("data", "sequence", None, "model", None, None),
        cache_brkcf=P("data", "sequence", None, None, None),
    )
