"""Tokenizers whose templates write calls and results as those of some families do: answers as
messages with a header each (gpt-oss), and results within the answer (Gemma 4)."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import gemma4, mistral
from small_tokenizers import build
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.transcript import Transcript

__all__ = [
    "HYBRID",
    "channels",
    "hybrid",
    "results_within",
    "talk",
    "tokenizer_with",
    "tools_apart",
]

MARKS = ("channel", "message", "constrain", "call", "return")
TEMPLATE = (
    "<|start|>system<|message|>You are a model.\n\n"
    "Reasoning: {{ reasoning_effort | default('medium') }}\n\n"
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


# The model goes on behind a result where it stood.
WITHIN = (
    "{% for m in messages %}{% if m.role == 'system' %}<|turn>system\n{{ m.content }}"
    "{% for tool in tools or () %}<|tool>{{ tool.function.name }}<tool|>{% endfor %}<turn|>\n"
    "{% elif m.role == 'user' %}<|turn>user\n{{ m.content }}<turn|>\n"
    "{% elif m.role == 'assistant' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<|turn>model\n{% endif %}"
    "{% for call in m.tool_calls or () %}"
    '<|tool_call>call:{{ call.function.name }}{path:<|"|>{{ call.function.arguments.path }}<|"|>}'
    "<tool_call|>{% endfor %}{{ m.content }}"
    "{% if m.tool_calls %}<|tool_response>{% else %}<turn|>\n{% endif %}"
    "{% elif m.role == 'tool' and not loop.first "
    "and (loop.previtem.tool_calls or loop.previtem.role == 'tool') %}"
    "{% if loop.previtem.role == 'tool' %}<|tool_response>{% endif %}"
    "response:{{ m.name }}{{ '{' }}{{ m.content }}{{ '}' }}<tool_response|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model\n{% endif %}"
)
# Tools stand between the system prompt and the first question, where no system prompt can be.
APART = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]"
    "{{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}{% if tools and loop.index0 < 2 %}[AVAILABLE_TOOLS]"
    "{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{% if not m.tool_calls %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or () %}"
    "{% if call.id | length != 9 %}{{ raise_exception('an id has nine letters') }}{% endif %}"
    "[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id }}[ARGS]"
    "{{ call.function.arguments | tojson }}{% endfor %}</s>"
    "{% elif m.role == 'tool' and m.tool_call_id %}"
    "[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
)


# A model that thinks, or does not, as the end of the prompt says.
HYBRID = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if mood is defined %}{{ {'calm': '(calm) '}[mood] or raise_exception('no such mood') }}"
    "{% endif %}{% endif %}"
)


def channels() -> TokenizerWrapper:
    """Answers of messages; `<|return|>` ends one, and `<|call|>` a call."""
    marks = [f"<|{name}|>" for name in MARKS]
    return tokenizer_with(TEMPLATE, marks, ["<|return|>", "<|call|>"])


def hybrid() -> TokenizerWrapper:
    """Thoughts between marks, which `enable_thinking` of the template leaves out."""
    marks = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    return tokenizer_with(HYBRID, marks, ["<|im_end|>"])


def results_within() -> TokenizerWrapper:
    """A call ends an answer by the token that its result begins with."""
    names = ("turn", "tool", "tool_call", "tool_response")
    marks = [f"<|{name}>" for name in names] + [f"<{name}|>" for name in names] + ['<|"|>']
    return tokenizer_with(WITHIN, marks, ["<turn|>", "<|tool_response>"], gemma4)


def tools_apart() -> TokenizerWrapper:
    """No system prompt says tools."""
    names = ("SYSTEM_PROMPT", "AVAILABLE_TOOLS", "INST", "TOOL_RESULTS")
    marks = [f"[{name}]" for name in (*names, "TOOL_CALLS", "CALL_ID", "ARGS", "TOOL_CONTENT")]
    marks += [f"[/{name}]" for name in names] + ["<s>", "</s>"]
    return tokenizer_with(APART, marks, ["</s>"], mistral, bos_token="<s>")


def talk(chat: ChatFormat, *turns: tuple[str, str, str], finish: str = "stop") -> Transcript:
    """A transcript of prompts, each of a role, and what the model said to them."""
    transcript = Transcript(chat, "t", "Be kind.")
    for role, text, said in turns:
        prompt = transcript.render(role, text, answer=True)
        transcript.extend([prompt, transcript.answer(chat.encode(said), finish)])
    return transcript


def tokenizer_with(
    template: str, marks: Sequence[str], ends: Sequence[str], parser: Any = None, **more: str
) -> TokenizerWrapper:
    """One that has each text, special `marks`, `ends` of answers, and mlx-lm's `parser` of calls;
    `more` are special tokens by their use."""
    tokenizer = Tokenizer.from_str(build("bytes").to_str())
    tokenizer.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in marks])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=ends[0], clean_up_tokenization_spaces=False, **more
    )
    wrapped.chat_template = template
    names = ("tool_call_start", "tool_call_end")
    calls = {name: getattr(parser, name) for name in names} if parser else {}
    if parser:
        calls["tool_parser"] = parser.parse_tool_call
    ids = [tokenizer.token_to_id(mark) for mark in ends]
    return TokenizerWrapper(wrapped, eos_token_ids=ids, **calls)
