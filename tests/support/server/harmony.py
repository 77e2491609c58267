"""A tokenizer whose template writes answers as messages with a header each, as gpt-oss's does."""

from mlx_lm.tokenizer_utils import TokenizerWrapper
from small_tokenizers import build
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

__all__ = ["channels"]

MARKS = ("channel", "message", "constrain", "call", "return")
TEMPLATE = (
    "<|start|>system<|message|>You are a model.\n\nReasoning: medium\n\n"
    "# Valid channels: analysis, commentary, final."
    "{% if tools %}\nCalls go to the commentary channel: 'functions'.{% endif %}<|end|>"
    "{% set told = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if told or tools %}<|start|>developer<|message|>"
    "{% if told %}# Instructions\n\n{{ told }}\n\n{% endif %}"
    "{% if tools %}# Tools\n\n## functions\n\nnamespace functions {\n"
    "{% for tool in tools %}// {{ tool.function.description }}\n"
    "type {{ tool.function.name }} = (_: {{ tool.function.parameters | tojson }}) => any;\n"
    "{% endfor %}}{% endif %}<|end|>{% endif %}"
    "{% set last = namespace(tool='') %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'tool' %}"
    "{% if not last.tool %}{{ raise_exception('a result without a call') }}{% endif %}"
    "<|start|>functions.{{ last.tool }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'assistant' and m.tool_calls %}"
    "{% set last.tool = m.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ last.tool }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def channels() -> TokenizerWrapper:
    """The tokenizer, which has each text; `<|return|>` ends an answer, and `<|call|>` a call."""
    tokenizer = Tokenizer.from_str(build("bytes").to_str())
    marks = [AddedToken(f"<|{name}|>", special=True, normalized=False) for name in MARKS]
    tokenizer.add_special_tokens(marks)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|return|>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    ends = [tokenizer.token_to_id(mark) for mark in ("<|return|>", "<|call|>")]
    return TokenizerWrapper(wrapped, eos_token_ids=ends)
