"""The peers of the step benchmark: transformers' models in PyTorch, as they come, and tuned as far as one line each goes.

B rows, L length, K scored positions a row, V vocabulary.
"""
import time

import numpy as np
import torch
import transformers
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tests.bench.systems import RATE, System, Tower
from tests.bench.timing import best

IGNORED = -100


class Theirs:
    """One model and optimizer state for both ways.

    as it comes: labels into the model's own forward, whose head and cross entropy cover all positions; torch.optim.AdamW as it is.
    tuned: the head on the K scored positions alone (T5's head has no other positions) and AdamW's fused kernel. Both clip the
    norm of the gradient at 1, as transformers' Trainer and ours do, and use the attention that transformers picks (SDPA).
    """

    ways = ("as it comes", "tuned")

    def __init__(self, system: System, threads: int):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.system, self.net = system, {"bert": Bert, "t5": T5, "electra": Electra}[system.kind](system)
        self.net.train()
        decayed = [p for p in self.net.parameters() if p.ndim > 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": [p for p in self.net.parameters() if p.ndim < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
        self.batches = [self.placed(system.batch(seed)) for seed in range(4)]
        self.done = 0

    def placed(self, batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """The batch as the collators give it, with the places of the scored positions [B, K] for the tuned way."""
        out = {key: torch.from_numpy(x).long() for key, x in batch.items() if key in ("tokens", "targets", "decoder_tokens", "segments")}
        out["labels"] = out["targets"].masked_fill(torch.from_numpy(batch["weights"] == 0), IGNORED)
        out["where"] = torch.from_numpy(batch["weights"].nonzero()[1].reshape(self.system.rows, -1))
        return out

    def about(self) -> dict:
        return {"parameters": sum(p.numel() for p in self.net.parameters()), "library": f"torch {torch.__version__}, transformers {transformers.__version__}",
                "threads": f"torch.set_num_threads({torch.get_num_threads()}), OMP_NUM_THREADS, affinity", "attention": self.net.attention()}

    def step(self, way: str) -> float:
        """Seconds of one step; a loss that is no number is an error."""
        batch = self.batches[self.done % len(self.batches)]
        for group in self.optimizer.param_groups:
            group["fused"], group["foreach"] = way == "tuned", None
        begin = time.perf_counter()
        loss = self.net.tuned(batch) if way == "tuned" else self.net(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = loss.item()
        seconds, self.done = time.perf_counter() - begin, self.done + 1
        if not np.isfinite(self.loss):
            raise SystemExit(f"{way}: loss {self.loss}")
        return seconds

    def gemm(self, n: int) -> float:
        """GFLOP/s of a product of two n x n matrices in float32."""
        x, y = torch.randn(n, n), torch.randn(n, n)
        return 2 * n**3 / best(lambda: torch.mm(x, y)) / 1e9


def take(h: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """h [B, L, D] at where [B, K]."""
    return h.gather(1, where[..., None].expand(-1, -1, h.shape[-1]))


class Bert(torch.nn.Module):
    def __init__(self, system: System):
        super().__init__()
        t = system.tower
        config = transformers.BertConfig(vocab_size=system.vocabulary, hidden_size=t.width, num_hidden_layers=t.layers, num_attention_heads=t.heads,
                                         intermediate_size=t.hidden, max_position_embeddings=512)
        self.model = transformers.BertForMaskedLM(config)

    def attention(self) -> str:
        return self.model.config._attn_implementation

    def forward(self, batch: dict) -> torch.Tensor:
        return self.model(batch["tokens"], attention_mask=batch["segments"], labels=batch["labels"]).loss

    def tuned(self, batch: dict) -> torch.Tensor:
        h = self.model.bert(batch["tokens"], attention_mask=batch["segments"]).last_hidden_state
        scores = self.model.cls(take(h, batch["where"]))
        return cross_entropy(scores.flatten(0, 1), batch["targets"].gather(1, batch["where"]).flatten())


class T5(torch.nn.Module):
    def __init__(self, system: System):
        super().__init__()
        t = system.tower
        config = transformers.T5Config(vocab_size=system.vocabulary, d_model=t.width, d_kv=t.width // t.heads, d_ff=t.hidden, num_layers=t.layers,
                                       num_heads=t.heads, decoder_start_token_id=0, use_cache=False)
        self.model = transformers.T5ForConditionalGeneration(config)

    def attention(self) -> str:
        return self.model.config._attn_implementation

    def forward(self, batch: dict) -> torch.Tensor:
        return self.model(batch["tokens"], attention_mask=batch["segments"], decoder_input_ids=batch["decoder_tokens"], labels=batch["labels"]).loss

    tuned = forward


class Electra(torch.nn.Module):
    """Generator and discriminator over one set of tables; loss MLM + 50 RTD, the samples without gradient."""

    def __init__(self, system: System):
        super().__init__()
        self.generator = transformers.ElectraForMaskedLM(self.config(system, system.generator))
        self.discriminator = transformers.ElectraForPreTraining(self.config(system, system.tower))
        self.discriminator.electra.embeddings = self.generator.electra.embeddings

    def config(self, system: System, t: Tower) -> transformers.ElectraConfig:
        return transformers.ElectraConfig(vocab_size=system.vocabulary, embedding_size=system.embed, hidden_size=t.width, num_hidden_layers=t.layers,
                                          num_attention_heads=t.heads, intermediate_size=t.hidden, max_position_embeddings=512)

    def attention(self) -> str:
        return self.generator.config._attn_implementation

    def forward(self, batch: dict) -> torch.Tensor:
        """The generator's own loss and scores over all positions; samples at the masked ones."""
        out = self.generator(batch["tokens"], attention_mask=batch["segments"], labels=batch["labels"])
        masked = batch["labels"] != IGNORED
        sampled = out.logits.detach()[masked].softmax(-1).multinomial(1)[:, 0]
        shown, original = batch["tokens"].clone(), torch.where(masked, batch["targets"], batch["tokens"])
        shown[masked] = sampled
        replaced = (shown != original).long()
        return out.loss + 50 * self.discriminator(shown, attention_mask=batch["segments"], labels=replaced).loss

    def tuned(self, batch: dict) -> torch.Tensor:
        net, where = self.generator, batch["where"]
        h = net.electra(batch["tokens"], attention_mask=batch["segments"]).last_hidden_state
        scores, targets = net.generator_lm_head(net.generator_predictions(take(h, where))), batch["targets"].gather(1, where)
        mlm = cross_entropy(scores.flatten(0, 1), targets.flatten())
        sampled = scores.detach().flatten(0, 1).softmax(-1).multinomial(1).view_as(where)
        shown = batch["tokens"].scatter(1, where, sampled)
        replaced = shown != batch["tokens"].scatter(1, where, targets)
        logits = self.discriminator(shown, attention_mask=batch["segments"]).logits
        return mlm + 50 * binary_cross_entropy_with_logits(logits, replaced.float())
