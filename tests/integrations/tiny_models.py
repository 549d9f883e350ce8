"""Tiny models of transformers made from configurations, their data, and a Trainer that runs on a CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra transformers: `make test-integrations`")

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

VOCABULARY, CLASSES, WIDTH = 23, 4, 16
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "initializer_range": 0.5,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**SMALL, **TOKENS, "num_key_value_heads": 2}
BERT = {
    **SMALL,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 16,
}
GPT2 = {
    **TOKENS,
    "vocab_size": VOCABULARY,
    "n_embd": WIDTH,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 16,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "initializer_range": 0.5,
}

MAKERS = {
    "sequence": lambda: BertForSequenceClassification(BertConfig(**BERT)),
    "token": lambda: BertForTokenClassification(BertConfig(**BERT)),
    "masked": lambda: BertForMaskedLM(BertConfig(**BERT)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, d_model=WIDTH, num_layers=1)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**DECODER)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),  # its head is tied to its embedding
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**DECODER, head_dim=8, final_logit_softcapping=2.0)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**DECODER, logit_scale=0.0625)),  # scales its logits
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**DECODER, num_local_experts=2, output_router_logits=True)),
}
CAUSAL = ("llama", "gpt2", "gemma2", "cohere", "mixtral")


def make_model(kind):
    torch.manual_seed(0)
    return MAKERS[kind]().eval()


def make_examples(kind, count=16, seed=0):
    """Texts of 2 to 9 tokens; some tokens have no label."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high, *shape):
        return torch.randint(high, shape, generator=generator)

    examples = []
    for _ in range(count):
        tokens = draw(VOCABULARY - 3, int(draw(8)) + 2) + 3
        if kind == "sequence":
            labels = draw(CLASSES)
        else:
            labels = tokens.clone() if kind in CAUSAL else draw(CLASSES, len(tokens))
            labels[torch.rand(len(tokens), generator=generator) < 0.2] = -100
        examples.append({"input_ids": tokens, "labels": labels})
    return examples


def collate(examples):
    """Pad texts to the longest one."""
    tokens = [example["input_ids"] for example in examples]
    labels = [example["labels"] for example in examples]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=0),
        "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in tokens], batch_first=True),
        "labels": torch.stack(labels)
        if labels[0].ndim == 0
        else torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100),
    }


def make_trainer(model, folder, kind, *, batch=4, accumulate=1, steps=2, options=None, **settings):
    """A Trainer with plain gradient descent, which shows any factor on the gradient."""
    common = {
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
    }
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        max_steps=steps,
        **{**common, **(options or {})},
    )
    return Trainer(model=model, args=arguments, train_dataset=make_examples(kind), data_collator=collate, **settings)


def train(model, folder, kind, **settings):
    """Train, and return the logged losses and the trained weights."""
    trainer = make_trainer(model, folder, kind, **settings)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, {name: weight.detach().clone() for name, weight in model.named_parameters()}
